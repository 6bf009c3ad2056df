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
    let [date, time] = numbers(text, "dddddddd-dddddd")[..] else { return false };
    let (hour, minute, second) = (time / 10_000, time / 100 % 100, time % 100);
    is_day(date / 10_000, date / 100 % 100, date % 100) && hour < 24 && minute < 60 && second < 60
}

fn is_day(year: u32, month: u32, day: u32) -> bool {
    let [month, day] = [month, day].map(|number| u8::try_from(number).unwrap_or(0));
    let (Ok(year), Ok(month)) = (i32::try_from(year), Month::try_from(month)) else { return false };
    year > 0 && Date::from_calendar_date(year, month, day).is_ok()
}

/// The numbers in a text of exactly this shape (`d` is a digit); empty if the text does not match.
fn numbers(text: &str, shape: &str) -> Vec<u32> {
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

    /// The field that breaks a rule after this change, if one does.
    fn broken(change: impl FnOnce(&mut BookkeepingEntry)) -> Option<String> {
        let mut entry = BookkeepingEntry::example();
        change(&mut entry);
        entry.check().err().map(|error| error.field)
    }

    fn broken_by_text(field: &str, text: &str) -> Option<String> {
        broken(|entry| {
            let mut json = serde_json::to_value(&*entry).unwrap();
            json[field] = text.into();
            *entry = serde_json::from_value(json).unwrap();
        })
    }

    #[test]
    fn the_example_obeys_every_rule() {
        assert_eq!(BookkeepingEntry::example().check(), Ok(()));
    }

    #[test]
    fn texts_that_break_a_rule_are_refused_by_the_name_of_their_field() {
        let (long, remark) = ("字".repeat(MAX_SHORT + 1), "字".repeat(MAX_REMARK + 1));
        let dates = "2025-02-29,2025-13-01,2025-00-10,2025-1-01,20251129,0000-01-01,2025-11-29 ,\
            ２０２５-11-29";
        let times = "24:00,12:60,9:30,12:30:00,ab:cd";
        let ids = "20250229-120000,20251129-240000,20251129-126000,20251129-120060,20251129120000,\
            2025-11-29,20251129-1200,20251129-12000,日日-日";
        let table: [(&[&str], &str); 8] = [
            (&["intent"], ",Bookkeeping,multi_bookkeeping"),
            (&["日期"], &format!(",{dates}")),
            (&["時間"], &format!(",{times}")),
            (&["品項", "付款方式", "分類", "專案", "必要性"], &format!(",  ,\u{3000},{long}")),
            (&["原幣別"], ",NTD,twd,TWDX,HRK"),
            (&["交易ID"], &format!(",{ids}")),
            (&["明細說明", "收款支付對象", "附註"], &remark),
            (&["代墊狀態"], ",有,代墊 "),
        ];
        for (fields, wrong) in table {
            for (field, value) in fields.iter().flat_map(|f| wrong.split(',').map(move |v| (f, v)))
            {
                assert_eq!(broken_by_text(field, value).as_deref(), Some(*field), "{value:?}");
            }
        }
    }

    #[test]
    fn the_edges_of_every_rule_are_allowed() {
        let (short, remark) = ("字".repeat(MAX_SHORT), "字".repeat(MAX_REMARK));
        let edges = [
            ("日期", "2024-02-29"),
            ("時間", "23:59"),
            ("交易ID", "20240229-235959"),
            ("品項", &short),
            ("附註", &remark),
        ];
        for (field, value) in edges.into_iter().chain(ADVANCES.map(|value| ("代墊狀態", value)))
        {
            assert_eq!(broken_by_text(field, value), None, "{field}");
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
