use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{BookkeepingEntry, InvalidEntry};

const NUMBERS: [&str; 2] = ["原幣金額", "匯率"];
const FIXED: [&str; 2] = ["intent", "交易ID"];

/// Changes to an entry: JSON field names, and their new values.
///
/// ```
/// use bookkeeping_bot::entry::{BookkeepingEntry, Changes};
/// let lunch = BookkeepingEntry::example();
/// let changed = Changes::default().with("原幣金額", "120").with("品項", "").apply(&lunch)?;
/// assert_eq!((changed.amount, changed.item.as_str()), (120.0, "午餐"));
/// assert!(Changes::default().with("顏色", "紅").apply(&lunch).is_err());
/// # Ok::<_, bookkeeping_bot::entry::InvalidEntry>(())
/// ```
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Changes(Map<String, Value>);

impl Changes {
    /// Adds a field and its new value, a text or a number.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.insert(field.into(), value.into());
        self
    }

    /// Merges two sets of changes; `others` wins.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Returns the changed entry, after checking every rule. An empty value keeps the old one.
    pub fn apply(&self, entry: &BookkeepingEntry) -> Result<BookkeepingEntry, InvalidEntry> {
        let Ok(Value::Object(mut fields)) = serde_json::to_value(entry) else {
            unreachable!("an entry is a JSON object")
        };
        for (field, value) in &self.0 {
            let Some(kept) = fields.get_mut(field) else {
                return Err(InvalidEntry::new(field, "不是可以修改的欄位"));
            };
            if FIXED.contains(&&**field) {
                return Err(InvalidEntry::new(field, "不可修改"));
            }
            if is_empty(value) {
                continue;
            }
            *kept = if NUMBERS.contains(&&**field) {
                let number = number(value).ok_or(InvalidEntry::new(field, "必須是數字"))?;
                Value::from(number)
            } else {
                let text = value.as_str().ok_or(InvalidEntry::new(field, "必須是文字"))?;
                Value::from(text.trim())
            };
        }
        let changed: BookkeepingEntry = serde_json::from_value(Value::Object(fields))
            .map_err(|_| InvalidEntry::new(NUMBERS[0], "必須是數字"))?;
        changed.check().map(|()| changed)
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty())
}

/// Parses a number, or a text of digits with at most one point and an optional minus. Other
/// notations, such as exponents, are rejected.
fn number(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => {
            let text = text.trim();
            let digits = text.strip_prefix('-').unwrap_or(text);
            let plain = digits.starts_with(|c: char| c.is_ascii_digit())
                && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            text.parse().ok().filter(|_| plain)?
        }
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// Shows only the number of changes, because values are personal.
impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Changes({} of them)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(field: &str, value: impl Into<Value>) -> InvalidEntry {
        Changes::default().with(field, value).apply(&BookkeepingEntry::example()).unwrap_err()
    }

    #[test]
    fn invalid_changes_are_refused_by_field_name() {
        for value in [json!(-1), json!("-1"), json!(-0.01), json!("-0")] {
            assert_eq!(refused("原幣金額", value).field, "原幣金額");
        }
        assert_eq!(refused("顏色", "紅").to_string(), "「顏色」不是可以修改的欄位");
        assert_eq!(refused("顏色", "").field, "顏色");
        assert_eq!(refused("交易ID", "20251129-150000").to_string(), "「交易ID」不可修改");
        assert_eq!(refused("intent", "bookkeeping").to_string(), "「intent」不可修改");
        assert_eq!(refused("品項", 5).to_string(), "「品項」必須是文字");
        for value in [
            json!("一百"),
            json!("inf"),
            json!("NaN"),
            json!("1e3"),
            json!("1.2.3"),
            json!("."),
            json!([1]),
            json!(true),
        ] {
            assert_eq!(refused("原幣金額", value).to_string(), "「原幣金額」必須是數字");
        }
        assert_eq!(refused("匯率", 0).field, "匯率");
        assert_eq!(refused("日期", "2025-02-30").field, "日期");
        assert_eq!(refused("原幣別", "NTD").field, "原幣別");
    }

    #[test]
    fn an_empty_value_keeps_the_old_one() {
        let lunch = BookkeepingEntry::example();
        for empty in [json!(""), json!("  "), json!(null)] {
            let nothing = Changes::default().with("品項", empty.clone()).with("原幣金額", empty);
            assert_eq!(nothing.apply(&lunch).unwrap(), lunch);
        }
    }

    #[test]
    fn every_other_field_can_be_changed() {
        let changes = json!({
            "日期": "2025-11-28", "時間": "08:00", "品項": "早餐", "原幣別": "USD", "原幣金額": 5.5,
            "匯率": "32.1", "付款方式": "現金", "明細說明": "蛋餅", "分類": "其他", "專案": "出差",
            "必要性": "想要", "代墊狀態": "代墊", "收款支付對象": "同事", "附註": " 無糖 ",
        });
        let changes: Changes = serde_json::from_value(changes).unwrap();
        let changed = changes.apply(&BookkeepingEntry::example()).unwrap();
        let json = serde_json::to_value(&changed).unwrap();
        for (field, value) in &changes.0 {
            let wanted = if field == "匯率" { json!(32.1) } else { value.clone() };
            let wanted = wanted.as_str().map_or(wanted.clone(), |text| text.trim().into());
            assert_eq!(json[field].to_string(), wanted.to_string());
        }
        assert_eq!(changed.transaction_id, "20251129-143000");
    }
}
