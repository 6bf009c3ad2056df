//! `--demo`: a conversation with the bot through LINE's simulator on loopback, in temporary files.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context, ensure};
use hapax_line::ChannelSecrets;
use hapax_line::simulator::{SimulatedApi, WebhookSender, events};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::ledger;
use crate::server;
use crate::settings::BookkeepingBotArgs;

const SECRET: &str = "demo-secret";
const TOKEN: &str = "demo-token";
const USER: &str = "Uf00d000000000000000000000000demo";
const BOT: &str = "Uf00d0000000000000000000000000bot";
const PATIENCE: Duration = Duration::from_secs(30);

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
pub async fn run(args: BookkeepingBotArgs, meters: PrometheusHandle) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let api = SimulatedApi::start("127.0.0.1:0", TOKEN).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/line/webhook", listener.local_addr()?);
    let args = BookkeepingBotArgs {
        store: "memory:".into(),
        database: format!("sqlite:{}", folder.path().join("ledger.db").display()),
        channel_secret: Some(SECRET.into()),
        channel_access_token: Some(TOKEN.into()),
        line_api_base: api.base(),
        openai_api_base: None,
        openai_api_key: None,
        ..args
    };
    let sender = WebhookSender::new(&url, &ChannelSecrets::new(SECRET)?, BOT)?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = server::serve(&args, listener, meters, async {
        let _ = stopped.await;
    });
    let talking = async {
        let talked = talk(&api, &sender).await;
        drop(stop);
        talked
    };
    let (served, talked) = tokio::join!(serving, talking);
    served.and(talked)?;
    show_ledger(&args.database).await
}

async fn talk(api: &SimulatedApi, sender: &WebhookSender) -> anyhow::Result<()> {
    for (n, (text, expected)) in CHAT.into_iter().enumerate() {
        writeln!(io::stdout(), "使用者  {text}")?;
        let event = events::text(USER, text);
        send(sender, &event).await?;
        let said = api.next(PATIENCE).await.context("the bot said nothing")?.texts();
        for text in &said {
            writeln!(io::stdout(), "機器人  {}", text.replace('\n', "\n        "))?;
        }
        ensure!(
            said.first().is_some_and(|text| text.starts_with(expected)),
            "not what was expected"
        );
        if n == REDELIVERED {
            send(sender, &events::redelivered(&event)).await?;
            writeln!(io::stdout(), "        （LINE 重送同一則訊息：不會重複記帳）")?;
        }
    }
    ensure!(api.accepted_calls().len() == CHAT.len(), "something was said twice");
    ensure!(api.violations().is_empty(), "LINE would have refused something");
    Ok(())
}

async fn send(sender: &WebhookSender, event: &Value) -> anyhow::Result<()> {
    let delivered = sender.send(std::slice::from_ref(event)).await?;
    ensure!(delivered.status == 200, "the webhook was answered with {}", delivered.status);
    Ok(())
}

async fn show_ledger(url: &str) -> anyhow::Result<()> {
    let rows = ledger::open(url).await?.rows().await?;
    writeln!(io::stdout(), "\n帳本")?;
    for row in &rows {
        let (entry, state) = match (&row.amended, row.withdrawn) {
            (_, true) => (row.amended.as_ref().unwrap_or(&row.entry), "已撤回"),
            (Some(amended), false) => (amended, "已修改"),
            (None, false) => (&row.entry, "　　　"),
        };
        let (item, amount, currency) = (&entry.item, entry.amount, &entry.currency);
        writeln!(io::stdout(), "{}  {state}  {item} {amount} {currency}", entry.transaction_id)?;
    }
    ensure!(rows.len() == 3, "the ledger has {} rows", rows.len());
    Ok(())
}
