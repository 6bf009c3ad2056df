//! What an entry is, and every rule that it obeys.

mod changes;
mod check;
mod currency;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use changes::Changes;
pub use currency::is_currency;

/// How long a short text may be, in characters.
pub const MAX_SHORT: usize = 100;
/// How long a remark may be, in characters.
pub const MAX_REMARK: usize = 500;
/// The largest amount and the largest rate: what a float still counts by the cent.
pub const MAX_NUMBER: f64 = 1e12;

/// What [`BookkeepingEntry::intent`] always says.
pub const INTENT: &str = "bookkeeping";

/// The values of 代墊狀態.
pub const ADVANCES: [&str; 4] = ["無", "代墊", "需支付", "不索取"];

/// One entry, as it is stored: JSON with these names.
///
/// Reading alone checks the names and types; [`check`](Self::check) says whether it obeys the rules.
///
/// ```
/// use bookkeeping_bot::entry::BookkeepingEntry;
/// let mut entry = BookkeepingEntry::example();
/// entry.check()?;
/// entry.amount = -1.0;
/// assert_eq!(entry.check().unwrap_err().to_string(), "「原幣金額」必須是 0 到 1000000000000 的數字");
/// # Ok::<_, bookkeeping_bot::entry::InvalidEntry>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BookkeepingEntry {
    /// Always [`INTENT`].
    pub intent: String,
    /// `YYYY-MM-DD`, a day of the calendar.
    #[serde(rename = "日期")]
    pub date: String,
    /// `HH:MM`.
    #[serde(rename = "時間")]
    pub time: String,
    /// What it was for; not empty.
    #[serde(rename = "品項")]
    pub item: String,
    /// A code of ISO 4217.
    #[serde(rename = "原幣別")]
    pub currency: String,
    /// At least 0.
    #[serde(rename = "原幣金額")]
    pub amount: f64,
    /// More than 0.
    #[serde(rename = "匯率")]
    pub rate: f64,
    /// Not empty.
    #[serde(rename = "付款方式")]
    pub payment: String,
    /// `YYYYMMDD-HHMMSS`, a moment of the calendar.
    #[serde(rename = "交易ID")]
    pub transaction_id: String,
    /// Anything.
    #[serde(rename = "明細說明", default)]
    pub details: String,
    /// Not empty.
    #[serde(rename = "分類")]
    pub category: String,
    /// Not empty.
    #[serde(rename = "專案")]
    pub project: String,
    /// Not empty.
    #[serde(rename = "必要性")]
    pub necessity: String,
    /// One of [`ADVANCES`].
    #[serde(rename = "代墊狀態")]
    pub advance: String,
    /// Anything.
    #[serde(rename = "收款支付對象", default)]
    pub counterparty: String,
    /// Anything.
    #[serde(rename = "附註", default)]
    pub note: String,
}

/// A field, and the rule that it breaks. For the user alone: the field may be his own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("「{field}」{rule}")]
pub struct InvalidEntry {
    /// Its name in the JSON.
    pub field: String,
    /// What it must be.
    pub rule: Cow<'static, str>,
}

impl InvalidEntry {
    /// This field breaks this rule.
    pub fn new(field: impl Into<String>, rule: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), rule: rule.into() }
    }
}

impl BookkeepingEntry {
    /// A lunch.
    pub fn example() -> Self {
        Self {
            intent: INTENT.into(),
            date: "2025-11-29".into(),
            time: "14:30".into(),
            item: "午餐".into(),
            currency: "TWD".into(),
            amount: 100.0,
            rate: 1.0,
            payment: "信用卡".into(),
            transaction_id: "20251129-143000".into(),
            details: String::new(),
            category: "飲食".into(),
            project: "日常".into(),
            necessity: "必要".into(),
            advance: "無".into(),
            counterparty: String::new(),
            note: String::new(),
        }
    }
}

/// Shows nothing of what somebody bought.
impl fmt::Debug for BookkeepingEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BookkeepingEntry(…)")
    }
}
