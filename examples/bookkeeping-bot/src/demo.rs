//! `--demo`: a conversation with the bot through LINE's simulator on loopback, in temporary files.

use anyhow::ensure;
use example_common::demo::{DemoLine, SECRET, TOKEN, USER, print};
use hapax_line::simulator::events;
use tokio::sync::oneshot;

use crate::ledger::Ledger;
use crate::server;
use crate::settings::BookkeepingBotArgs;

/// The user's messages, and how the bot's answers begin.
const CHAT: [(&str, &str); 9] = [
    ("你好", "您可以這樣說"),
    ("午餐 100 信用卡", "✅ 已記帳 1 筆"),
    ("改金額 120", "修改成功"),
    ("早餐 50、咖啡 80", "✅ 已記帳 2 筆"),
    ("把品項改成 拿鐵", "修改成功"),
    ("改金額 -5", "無法修改：「原幣金額」"),
    ("上一筆", "上一筆交易"),
    ("刪除", "🗑️ 已刪除"),
    ("改金額 1", "目前沒有可修改的交易記錄"),
];
/// Index of the message that LINE delivers twice.
const REDELIVERED: usize = 3;

/// Plays the conversation, and prints the chat and the ledger.
///
/// # Errors
/// If an answer is missing or unexpected.
pub async fn run(args: BookkeepingBotArgs) -> anyhow::Result<()> {
    let (line, listener) = DemoLine::start().await?;
    let args = BookkeepingBotArgs {
        store: "memory:".into(),
        database: line.database(),
        channel_secret: Some(SECRET.into()),
        channel_access_token: Some(TOKEN.into()),
        line_api_base: line.api.base(),
        openai_api_base: None,
        openai_api_key: None,
        ..args
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let server = server::open(&args, None).await?;
    let talking = async {
        let talked = talk(&line).await;
        drop(stop);
        talked
    };
    let (served, talked) =
        tokio::join!(server.serve(listener, async { drop(stopped.await) }), talking);
    served.and(talked)?;
    show_ledger(&args.database).await
}

async fn talk(line: &DemoLine) -> anyhow::Result<()> {
    for (n, (text, expected)) in CHAT.into_iter().enumerate() {
        print(&format!("使用者  {text}"))?;
        let event = events::text(USER, text);
        line.send(event.clone()).await?;
        let said = line.answer("機器人  ", 8).await?;
        ensure!(said[0].starts_with(expected), "not what was expected");
        if n == REDELIVERED {
            line.send(events::redelivered(&event)).await?;
            print("        （LINE 重送同一則訊息：不會重複記帳）")?;
        }
    }
    ensure!(line.api.accepted_calls().len() == CHAT.len(), "something was said twice");
    ensure!(line.api.violations().is_empty(), "LINE would have refused something");
    Ok(())
}

async fn show_ledger(url: &str) -> anyhow::Result<()> {
    let rows = Ledger::open(url).await?.rows().await?;
    print("\n帳本")?;
    for row in &rows {
        let state = match (&row.amended, row.withdrawn) {
            (_, true) => "已撤回",
            (Some(_), false) => "已修改",
            (None, false) => "　　　",
        };
        let entry = row.amended.as_ref().unwrap_or(&row.entry);
        let (item, amount, currency) = (&entry.item, entry.amount, &entry.currency);
        print(&format!("{}  {state}  {item} {amount} {currency}", entry.transaction_id))?;
    }
    ensure!(rows.len() == 3, "the ledger has {} rows", rows.len());
    Ok(())
}
