//! A bookkeeping entry, and the rules for its fields.

mod changes;
mod check;
mod currency;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use changes::Changes;
pub use currency::is_currency;

/// Maximum length of a short text, in characters.
pub const MAX_SHORT: usize = 100;
/// Maximum length of a remark, in characters.
pub const MAX_REMARK: usize = 500;
/// Maximum of amount and rate: up to it an `f64` is exact to the cent.
pub const MAX_NUMBER: f64 = 1e12;

/// The constant value of [`BookkeepingEntry::intent`].
pub const INTENT: &str = "bookkeeping";

/// The possible values of 代墊狀態.
pub const ADVANCES: [&str; 4] = ["無", "代墊", "需支付", "不索取"];

/// One entry, stored as JSON with these field names.
///
/// Deserializing checks only names and types; [`check`](Self::check) checks the rules.
///
/// ```
/// use bookkeeping_bot::entry::BookkeepingEntry;
/// let mut entry = BookkeepingEntry::example();
/// entry.check()?;
/// entry.amount = -1.0;
/// assert_eq!(entry.check().unwrap_err().to_string(), "「原幣金額」必須是 0 到 1000000000000 的數字");
/// # Ok::<_, bookkeeping_bot::entry::InvalidEntry>(())
/// ```
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BookkeepingEntry {
    /// Always [`INTENT`].
    pub intent: String,
    /// `YYYY-MM-DD`, a valid calendar date.
    #[serde(rename = "日期")]
    pub date: String,
    /// `HH:MM`.
    #[serde(rename = "時間")]
    pub time: String,
    /// The thing or service that was paid for; not empty.
    #[serde(rename = "品項")]
    pub item: String,
    /// An ISO 4217 code.
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
    /// `YYYYMMDD-HHMMSS`, a valid date and time.
    #[serde(rename = "交易ID")]
    pub transaction_id: String,
    /// Any text, possibly empty.
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
    /// Any text, possibly empty.
    #[serde(rename = "收款支付對象", default)]
    pub counterparty: String,
    /// Any text, possibly empty.
    #[serde(rename = "附註", default)]
    pub note: String,
}

/// A field, and the rule that it breaks. For the user only: the field may be the user's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("「{field}」{rule}")]
pub struct InvalidEntry {
    /// The field's name in the JSON.
    pub field: String,
    /// The rule, as a phrase that follows the field's name.
    pub rule: Cow<'static, str>,
}

impl InvalidEntry {
    /// An error about this field and this rule.
    pub fn new(field: impl Into<String>, rule: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), rule: rule.into() }
    }
}

impl BookkeepingEntry {
    /// A lunch, for tests and documentation.
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
            category: "飲食".into(),
            project: "日常".into(),
            necessity: "必要".into(),
            advance: "無".into(),
            ..Self::default()
        }
    }
}

/// Shows nothing of the entry, because its contents are personal.
impl fmt::Debug for BookkeepingEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BookkeepingEntry(…)")
    }
}
