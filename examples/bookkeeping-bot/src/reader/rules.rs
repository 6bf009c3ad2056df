use async_trait::async_trait;

use super::{Intent, MAX_ENTRIES, ReadError, Reader};
use crate::entry::{ADVANCES, BookkeepingEntry, Changes, INTENT, InvalidEntry, is_currency};
use crate::moment::Moment;

/// Reads exactly the message forms that the README lists.
///
/// `午餐 100 信用卡`, `早餐 50、咖啡 80`, `咖啡 5 USD 32.5`, `改金額 120`, `把分類改成 交通`, `刪除`, `上一筆`
#[derive(Clone, Copy, Debug, Default)]
pub struct RuleReader;

const DELETE: [&str; 4] = ["刪除", "刪除上一筆", "刪掉", "取消上一筆"];
const SHOW: [&str; 5] = ["上一筆", "顯示", "查看", "顯示上一筆", "查看上一筆"];
const SEPARATORS: [char; 7] = ['、', '，', ',', ';', '；', '\n', '。'];

/// The fields' JSON names, and the other names that users give to them.
const FIELDS: [(&str, &[&str]); 16] = [
    ("intent", &[]),
    ("交易ID", &[]),
    ("日期", &[]),
    ("時間", &[]),
    ("品項", &["品名"]),
    ("原幣金額", &["金額", "價錢"]),
    ("原幣別", &["幣別"]),
    ("匯率", &[]),
    ("付款方式", &["付款"]),
    ("明細說明", &["明細", "說明"]),
    ("分類", &["類別"]),
    ("專案", &[]),
    ("必要性", &[]),
    ("代墊狀態", &["代墊"]),
    ("收款支付對象", &["對象"]),
    ("附註", &[]),
];

/// Every name of a field, with the field's JSON name.
fn field_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    FIELDS.iter().flat_map(|(field, others)| {
        std::iter::once(field).chain(*others).map(|name| (*name, *field))
    })
}

/// Categories, by words that occur in the item.
const CATEGORIES: [(&str, &[&str]); 4] = [
    ("飲食", &["餐", "飯", "麵", "咖啡", "茶", "飲", "便當", "水果", "點心", "宵夜"]),
    ("交通", &["捷運", "公車", "計程車", "車", "高鐵", "加油", "停車", "機票"]),
    ("居住", &["房租", "水費", "電費", "瓦斯", "網路"]),
    ("娛樂", &["電影", "遊戲", "書", "門票"]),
];

#[async_trait]
impl Reader for RuleReader {
    async fn read(&self, text: &str, at: Moment) -> Result<Intent, ReadError> {
        let text = plain(text);
        let text = text.trim();
        if DELETE.contains(&text) {
            return Ok(Intent::Delete);
        }
        if SHOW.contains(&text) {
            return Ok(Intent::Show);
        }
        let parts = text.split(SEPARATORS).map(str::trim).filter(|part| !part.is_empty());
        let parts: Vec<_> = parts.collect();
        if let Some(changes) = edits(&parts, text) {
            return Ok(Intent::Edit(changes));
        }
        let entries = parts.iter().map(|part| entry(part, at)).collect::<Option<Vec<_>>>();
        match entries {
            Some(entries) if (1..=MAX_ENTRIES).contains(&entries.len()) => {
                Ok(Intent::Book(entries.into_iter().collect::<Result<_, _>>()?))
            }
            _ => Ok(Intent::Other),
        }
    }
}

/// Converts full-width digits and signs of Chinese keyboards, and `1,000`, to plain ASCII.
fn plain(text: &str) -> String {
    let half = |c: char| match c {
        '０'..='９' | '．' | '－' | '＄' => {
            char::from_u32(u32::from(c) - 0xFEE0).expect("the ASCII letter of the same name")
        }
        '\u{3000}' => ' ',
        c => c,
    };
    let all: Vec<char> = text.chars().map(half).collect();
    let is_digit =
        |at: Option<usize>| at.and_then(|at| all.get(at)).is_some_and(char::is_ascii_digit);
    let groups = |at: usize| {
        let three = (1..=3).all(|n| is_digit(Some(at + n))) && !is_digit(Some(at + 4));
        all[at] == ',' && is_digit(at.checked_sub(1)) && three
    };
    (0..all.len()).filter(|at| !groups(*at)).map(|at| all[at]).collect()
}

/// Parses several edits, or a single one whose value contains separators.
fn edits(parts: &[&str], text: &str) -> Option<Changes> {
    let first = edit(parts.first()?)?;
    let rest: Option<Vec<_>> = parts[1..].iter().map(|part| edit(part)).collect();
    match rest {
        Some(rest) => Some(rest.into_iter().fold(first, Changes::and)),
        None => edit(text),
    }
}

/// `改金額 120`, `修改 品項 工作午餐`, `把分類改成 交通`, `金額改為 120`.
fn edit(part: &str) -> Option<Changes> {
    let changed = ["改成", "改為", "改到"].iter().find_map(|verb| part.split_once(verb));
    if let Some((field, value)) = changed
        && !field.is_empty()
        && !field.contains(char::is_whitespace)
    {
        let field = field.strip_prefix('把').unwrap_or(field);
        let field = field.strip_suffix('的').unwrap_or(field);
        let known = field_names().find(|(name, _)| *name == field);
        return Some(change(known.map_or(field, |(_, field)| field), value));
    }
    let rest = ["修改", "更改", "改"].iter().find_map(|verb| part.strip_prefix(verb))?.trim_start();
    // Prefer the longest match: 代墊狀態 over 代墊.
    let known = field_names().filter(|(name, _)| rest.starts_with(name));
    let known = known.max_by_key(|(name, _)| name.len());
    match known {
        Some((name, field)) => Some(change(field, &rest[name.len()..])),
        None => {
            let (field, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            (!field.is_empty()).then(|| change(field, value))
        }
    }
}

fn change(field: &str, value: &str) -> Changes {
    let value = value.trim_matches([' ', ':', '：', '=', '為']);
    let value = match field {
        "原幣金額" | "匯率" => money(value).unwrap_or(value).to_owned(),
        "原幣別" => value.to_uppercase(),
        _ => value.to_owned(),
    };
    Changes::default().with(field, value)
}

/// Parses `午餐 100 信用卡`: an item, an amount, and then the other fields in any order. `None` if there
/// is no item or no amount.
fn entry(part: &str, at: Moment) -> Option<Result<BookkeepingEntry, InvalidEntry>> {
    let words: Vec<&str> = part.split_whitespace().collect();
    let place = words.iter().position(|word| money(word).is_some());
    let (item, amount, rest) = match place {
        Some(place) => (words[..place].join(" "), money(words[place])?, &words[place + 1..]),
        // `午餐100 信用卡`
        None => {
            let (first, rest) = words.split_first()?;
            let digits = first.find(|c: char| c.is_ascii_digit() || c == '-')?;
            (first[..digits].to_owned(), money(&first[digits..])?, rest)
        }
    };
    if item.is_empty() {
        return None;
    }
    Some(checked(item, amount, rest, at))
}

fn checked(
    item: String,
    amount: &str,
    rest: &[&str],
    at: Moment,
) -> Result<BookkeepingEntry, InvalidEntry> {
    let amount = amount.parse().map_err(|_| InvalidEntry::new("原幣金額", "必須是數字"))?;
    let mut entry = draft(item, amount, at);
    rest.iter().for_each(|word| add(&mut entry, word));
    if entry.rate.is_nan() {
        if entry.currency != "TWD" {
            return Err(InvalidEntry::new("匯率", "要寫在外幣後面，例如：咖啡 5 USD 32.5"));
        }
        entry.rate = 1.0;
    }
    entry.check().map(|()| entry)
}

fn draft(item: String, amount: f64, at: Moment) -> BookkeepingEntry {
    let category =
        CATEGORIES.iter().find(|(_, words)| words.iter().any(|word| item.contains(word)));
    BookkeepingEntry {
        intent: INTENT.into(),
        date: at.date(),
        time: at.time(),
        category: category.map_or("其他", |(category, _)| category).into(),
        item,
        currency: "TWD".into(),
        amount,
        // A placeholder until the rate is known.
        rate: f64::NAN,
        payment: "現金".into(),
        transaction_id: at.transaction_id(),
        project: "日常".into(),
        necessity: "必要".into(),
        advance: ADVANCES[0].into(),
        ..BookkeepingEntry::default()
    }
}

fn add(entry: &mut BookkeepingEntry, word: &str) {
    let code = word.to_ascii_uppercase();
    if is_currency(&code) {
        entry.currency = code;
    } else if let Some(rate) = money(word).and_then(|rate| rate.parse().ok()) {
        entry.rate = rate;
    } else if ADVANCES.contains(&word) {
        entry.advance = word.into();
    } else {
        entry.payment = word.into();
    }
}

/// The digits of `100`, `$100`, `NT$100`, `100元`, `-5`, `99.5`.
fn money(word: &str) -> Option<&str> {
    let word = ["NT$", "$"].iter().find_map(|sign| word.strip_prefix(sign)).unwrap_or(word);
    let word = ["元", "塊"].iter().find_map(|unit| word.strip_suffix(unit)).unwrap_or(word);
    let digits = word.strip_prefix('-').unwrap_or(word);
    let plain = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    plain.then_some(word)
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
