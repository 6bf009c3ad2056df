//! The bot's texts, apart from those of [`Outcome`](crate::last::Outcome).

use std::fmt::Write as _;

use crate::entry::{BookkeepingEntry, InvalidEntry};
use crate::last::LastEntry;

/// Words that address the bot in a group, where it answers nothing else but mentions.
pub(super) const BOT: &[&str] = &["記帳", "/book"];

pub(super) const NOBODY: &str = "無法得知您是誰，請在與我的一對一聊天中記帳";
pub(super) const NOT_EDITABLE: &str = "已記入帳本，但暫時無法修改這筆交易";

pub(super) const HELP: &str = "您可以這樣說：\n\
     ・午餐 100 信用卡\n\
     ・早餐 50、咖啡 80\n\
     ・咖啡 5 USD 32.5\n\
     ・改金額 120\n\
     ・修改品項 工作午餐\n\
     ・把分類改成 交通\n\
     ・上一筆\n\
     ・刪除\n\
     記帳後 1 小時內可以修改上一筆";

pub(super) fn no_reader() -> String {
    format!("智慧解讀暫時無法使用，請改用固定的說法。\n{HELP}")
}

pub(super) fn refused(error: &InvalidEntry) -> String {
    format!("無法記帳：{error}")
}

pub(super) fn booked(entries: &[BookkeepingEntry]) -> String {
    let mut text = format!("✅ 已記帳 {} 筆", entries.len());
    for entry in entries {
        let BookkeepingEntry { category, payment, .. } = entry;
        let _ = write!(text, "\n・{}（{category}，{payment}）", short(entry));
    }
    text
}

pub(super) fn deleted(entry: &BookkeepingEntry) -> String {
    format!("🗑️ 已刪除：{}", short(entry))
}

pub(super) fn shown(last: &LastEntry) -> String {
    let mut text = format!("上一筆交易\n{}", details(&last.value));
    if let Some(left) = last.expires_in {
        let _ = write!(text, "\n（還可以修改 {} 分鐘）", left.as_secs().div_ceil(60));
    }
    text
}

/// All fields that are not empty.
pub(super) fn details(entry: &BookkeepingEntry) -> String {
    let (amount, rate) = (entry.amount.to_string(), entry.rate.to_string());
    let fields: [(&str, &str); 15] = [
        ("交易ID", &entry.transaction_id),
        ("日期", &entry.date),
        ("時間", &entry.time),
        ("品項", &entry.item),
        ("原幣別", &entry.currency),
        ("原幣金額", &amount),
        ("匯率", &rate),
        ("付款方式", &entry.payment),
        ("分類", &entry.category),
        ("專案", &entry.project),
        ("必要性", &entry.necessity),
        ("代墊狀態", &entry.advance),
        ("明細說明", &entry.details),
        ("收款支付對象", &entry.counterparty),
        ("附註", &entry.note),
    ];
    let lines = fields.iter().filter(|(_, value)| !value.is_empty());
    lines.map(|(field, value)| format!("{field}：{value}")).collect::<Vec<_>>().join("\n")
}

fn short(entry: &BookkeepingEntry) -> String {
    format!("{} {} {}", entry.item, entry.amount, entry.currency)
}
