use time::{Date, Month};

use super::{
    ADVANCES, BookkeepingEntry, INTENT, InvalidEntry, MAX_NUMBER, MAX_REMARK, MAX_SHORT,
    is_currency,
};

impl BookkeepingEntry {
    /// Checks every field; the error names the first one that breaks a rule.
    pub fn check(&self) -> Result<(), InvalidEntry> {
        let short = format!("不可空白，最多 {MAX_SHORT} 個字");
        let remark = format!("最多 {MAX_REMARK} 個字");
        let amount = format!("必須是 0 到 {MAX_NUMBER} 的數字");
        let rate = format!("必須是大於 0、不超過 {MAX_NUMBER} 的數字");
        let advance = format!("只能是：{}", ADVANCES.join("、"));
        let rules: [(&str, bool, &str); 16] = [
            ("intent", self.intent == INTENT, "固定為 bookkeeping"),
            ("日期", is_date(&self.date), "必須是存在的日期，格式為 YYYY-MM-DD"),
            ("時間", is_time(&self.time), "必須是存在的時間，格式為 HH:MM"),
            ("品項", is_short(&self.item), &short),
            ("原幣別", is_currency(&self.currency), "必須是 ISO 4217 幣別代碼，例如 TWD"),
            ("原幣金額", is_amount(self.amount), &amount),
            ("匯率", is_amount(self.rate) && self.rate > 0.0, &rate),
            ("付款方式", is_short(&self.payment), &short),
            (
                "交易ID",
                is_transaction_id(&self.transaction_id),
                "必須是存在的日期與時間，格式為 YYYYMMDD-HHMMSS",
            ),
            ("明細說明", is_remark(&self.details), &remark),
            ("分類", is_short(&self.category), &short),
            ("專案", is_short(&self.project), &short),
            ("必要性", is_short(&self.necessity), &short),
            ("代墊狀態", ADVANCES.contains(&&*self.advance), &advance),
            ("收款支付對象", is_remark(&self.counterparty), &remark),
            ("附註", is_remark(&self.note), &remark),
        ];
        match rules.into_iter().find(|(_, obeyed, _)| !obeyed) {
            None => Ok(()),
            Some((field, _, rule)) => Err(InvalidEntry::new(field, rule.to_owned())),
        }
    }
}

fn is_short(text: &str) -> bool {
    !text.trim().is_empty() && text.chars().count() <= MAX_SHORT
}

fn is_remark(text: &str) -> bool {
    text.chars().count() <= MAX_REMARK
}

/// Rejects negative numbers, `-0.0`, NaN and everything above [`MAX_NUMBER`].
fn is_amount(number: f64) -> bool {
    number.is_sign_positive() && number <= MAX_NUMBER
}

fn is_date(text: &str) -> bool {
    matches!(numbers(text, "dddd-dd-dd")[..], [year, month, day] if is_day(year, month, day))
}

fn is_time(text: &str) -> bool {
    matches!(numbers(text, "dd:dd")[..], [hour, minute] if hour < 24 && minute < 60)
}

fn is_transaction_id(text: &str) -> bool {
    let Some((date, time)) = text.split_once('-') else { return false };
    let (Some((year, rest)), Some((hour, rest_of_time))) =
        (date.split_at_checked(4), time.split_at_checked(2))
    else {
        return false;
    };
    let (Some((month, day)), Some((minute, second))) =
        (rest.split_at_checked(2), rest_of_time.split_at_checked(2))
    else {
        return false;
    };
    is_date(&format!("{year}-{month}-{day}"))
        && is_time(&format!("{hour}:{minute}"))
        && matches!(numbers(second, "dd")[..], [second] if second < 60)
}

fn is_day(year: u16, month: u16, day: u16) -> bool {
    let month = u8::try_from(month).ok().and_then(|month| Month::try_from(month).ok());
    let (Some(month), Ok(day)) = (month, u8::try_from(day)) else { return false };
    year > 0 && Date::from_calendar_date(year.into(), month, day).is_ok()
}

/// The numbers in a text of exactly this shape (`d` is a digit); empty if the text does not match.
fn numbers(text: &str, shape: &str) -> Vec<u16> {
    let fits = |(byte, wanted): (u8, u8)| match wanted {
        b'd' => byte.is_ascii_digit(),
        mark => byte == mark,
    };
    if text.len() != shape.len() || !text.bytes().zip(shape.bytes()).all(fits) {
        return Vec::new();
    }
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut BookkeepingEntry, &str);

    fn broken(change: impl FnOnce(&mut BookkeepingEntry)) -> Option<String> {
        let mut entry = BookkeepingEntry::example();
        change(&mut entry);
        entry.check().err().map(|error| error.field)
    }

    #[test]
    fn the_example_obeys_every_rule() {
        assert_eq!(BookkeepingEntry::example().check(), Ok(()));
    }

    #[test]
    fn texts_that_break_a_rule_are_refused_by_the_name_of_their_field() {
        let long = "字".repeat(MAX_SHORT + 1);
        let remark = "字".repeat(MAX_REMARK + 1);
        let table: [(&str, Change, &[&str]); 13] = [
            ("intent", |e, v| e.intent = v.into(), &["", "Bookkeeping", "multi_bookkeeping"]),
            (
                "日期",
                |e, v| e.date = v.into(),
                &[
                    "",
                    "2025-02-29",
                    "2025-13-01",
                    "2025-00-10",
                    "2025-1-01",
                    "20251129",
                    "0000-01-01",
                    "2025-11-29 ",
                    "２０２５-11-29",
                ],
            ),
            (
                "時間",
                |e, v| e.time = v.into(),
                &["", "24:00", "12:60", "9:30", "12:30:00", "ab:cd"],
            ),
            ("品項", |e, v| e.item = v.into(), &["", "  ", "\u{3000}", &long]),
            ("原幣別", |e, v| e.currency = v.into(), &["", "NTD", "twd", "TWDX", "HRK"]),
            ("付款方式", |e, v| e.payment = v.into(), &["", " ", &long]),
            (
                "交易ID",
                |e, v| e.transaction_id = v.into(),
                &[
                    "",
                    "20250229-120000",
                    "20251129-240000",
                    "20251129-126000",
                    "20251129-120060",
                    "20251129120000",
                    "2025-11-29",
                    "20251129-1200",
                    "20251129-12000",
                    "日日-日",
                ],
            ),
            ("明細說明", |e, v| e.details = v.into(), &[&remark]),
            ("分類", |e, v| e.category = v.into(), &["", &long]),
            ("專案", |e, v| e.project = v.into(), &["", &long]),
            ("必要性", |e, v| e.necessity = v.into(), &["", &long]),
            ("代墊狀態", |e, v| e.advance = v.into(), &["", "有", "代墊 "]),
            ("附註", |e, v| e.note = v.into(), &[&remark]),
        ];
        for (field, change, wrong) in table {
            for value in wrong {
                assert_eq!(broken(|e| change(e, value)).as_deref(), Some(field), "{value:?}");
            }
        }
        assert_eq!(broken(|e| e.counterparty = remark).as_deref(), Some("收款支付對象"));
    }

    #[test]
    fn the_edges_of_every_rule_are_allowed() {
        assert_eq!(broken(|e| e.date = "2024-02-29".into()), None);
        assert_eq!(broken(|e| e.time = "23:59".into()), None);
        assert_eq!(broken(|e| e.transaction_id = "20240229-235959".into()), None);
        assert_eq!(broken(|e| e.item = "字".repeat(MAX_SHORT)), None);
        assert_eq!(broken(|e| e.note = "字".repeat(MAX_REMARK)), None);
        for advance in ADVANCES {
            assert_eq!(broken(|e| e.advance = advance.into()), None);
        }
    }

    #[test]
    fn amounts_and_rates_have_finite_bounds() {
        for number in [-0.01, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, MAX_NUMBER * 2.0] {
            assert_eq!(broken(|e| e.amount = number).as_deref(), Some("原幣金額"), "{number}");
            assert_eq!(broken(|e| e.rate = number).as_deref(), Some("匯率"), "{number}");
        }
        assert_eq!(broken(|e| e.rate = 0.0).as_deref(), Some("匯率"));
        assert_eq!(broken(|e| e.amount = 0.0), None);
        assert_eq!(broken(|e| (e.amount, e.rate) = (MAX_NUMBER, 0.0001)), None);
    }

    #[test]
    fn the_json_is_the_one_of_the_original_bot() {
        let json = r#"{"intent":"bookkeeping","日期":"2025-11-29","時間":"14:30","品項":"午餐","原幣別":"TWD","原幣金額":100.0,"匯率":1.0,"付款方式":"信用卡","交易ID":"20251129-143000","明細說明":"","分類":"飲食","專案":"日常","必要性":"必要","代墊狀態":"無","收款支付對象":"","附註":""}"#;
        assert_eq!(serde_json::to_string(&BookkeepingEntry::example()).unwrap(), json);
        let read = |json: &str| serde_json::from_str::<BookkeepingEntry>(json);
        assert_eq!(read(json).unwrap(), BookkeepingEntry::example());
        assert_eq!(read(&json.replace("100.0", "100")).unwrap(), BookkeepingEntry::example());
        let optional =
            json.replace(r#""明細說明":"","#, "").replace(r#","收款支付對象":"","附註":"""#, "");
        assert_eq!(read(&optional).unwrap(), BookkeepingEntry::example());
        assert!(read(&json.replace(r#""品項":"午餐","#, "")).is_err(), "a field is missing");
        assert!(read(&json.replace("附註", "備註")).is_err(), "an unknown field");
        assert!(read(&json.replace("100.0", r#""100""#)).is_err(), "a text for a number");
    }
}
