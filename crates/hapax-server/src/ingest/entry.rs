//! Stream entries of the workers, parsed into events.

use hapax::bus::NewEvent;
use hapax::redis::RedisReply;
use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamEntry {
    pub(super) id: String,
    /// The field `data`; `None` if the entry has no such field.
    pub(super) data: Option<Vec<u8>>,
}

/// A page of entries, and the ids of delivered entries that were trimmed from the stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct EntryPage {
    pub(super) present: Vec<StreamEntry>,
    pub(super) gone: Vec<String>,
    /// Whether entries were trimmed that the reply does not name: XAUTOCLAIM of Redis 6.2 returns nil for
    /// them.
    pub(super) has_unnamed: bool,
}

impl EntryPage {
    /// Parses `[[id, [name, value, …]], …]`; the fields of a trimmed entry are nil.
    pub(super) fn parse(reply: RedisReply) -> Self {
        let mut entries = Self::default();
        let RedisReply::Many(all) = reply else { return entries };
        for one in all {
            let RedisReply::Many(parts) = one else {
                entries.has_unnamed = true;
                continue;
            };
            let mut parts = parts.into_iter();
            let Some(RedisReply::Bytes(id)) = parts.next() else { continue };
            let id = String::from_utf8_lossy(&id).into_owned();
            match parts.next() {
                Some(RedisReply::Many(fields)) => {
                    entries.present.push(StreamEntry { id, data: field(fields, b"data") });
                }
                _ => entries.gone.push(id),
            }
        }
        entries
    }

    pub(super) fn is_empty(&self) -> bool {
        self.present.is_empty() && self.gone.is_empty()
    }
}

fn field(fields: Vec<RedisReply>, wanted: &[u8]) -> Option<Vec<u8>> {
    let mut fields = fields.into_iter();
    while let (Some(RedisReply::Bytes(name)), Some(RedisReply::Bytes(value))) =
        (fields.next(), fields.next())
    {
        if name == wanted {
            return Some(value);
        }
    }
    None
}

/// Parses the JSON of a worker. The error is for operators and contains nothing of the content.
pub(super) fn parse_event(domain: &str, data: Option<&[u8]>) -> Result<NewEvent, String> {
    let data = data.ok_or("the entry has no field `data`")?;
    let value: Value = serde_json::from_slice(data).map_err(|error| {
        format!("broken JSON at line {} column {}", error.line(), error.column())
    })?;
    let Value::Object(mut members) = value else { return Err("the JSON is no object".into()) };
    let job_id = string_member(&mut members, "job_id")?.filter(|id| !id.is_empty());
    let job_id = job_id.ok_or("there is no job_id")?;
    let domain = string_member(&mut members, "domain")?.unwrap_or_else(|| domain.to_owned());
    let stage = string_member(&mut members, "stage")?.ok_or("there is no stage")?;
    let seq = members.shift_remove("seq").ok_or("there is no seq")?;
    let seq = seq.as_u64().ok_or("seq is no whole number")?;
    let timestamp = string_member(&mut members, "timestamp")?;
    let closes = match members.shift_remove("final") {
        None => false,
        Some(Value::Bool(closes)) => closes,
        Some(_) => return Err("final is neither true nor false".into()),
    };
    let data = members.shift_remove("data").unwrap_or_default();
    let event = NewEvent::new(domain, job_id, stage, seq).data(data);
    Ok(NewEvent { closes, timestamp, ..event })
}

/// Takes a string, or a number instead of one, as in `"job_id": 17`.
fn string_member(members: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match members.shift_remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(format!("{name} is no text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn worker_event_is_parsed() {
        let json = br#"{"job_id": "job-1", "domain": "scan", "stage": "vision", "seq": 10,
            "data": {"status": "done"}, "timestamp": "2025-12-29T10:00:00.123456"}"#;
        let read = parse_event("scan", Some(json)).unwrap();
        let expected = NewEvent::new("scan", "job-1", "vision", 10)
            .data(json!({"status": "done"}))
            .timestamp("2025-12-29T10:00:00.123456");
        assert_eq!(read, expected);
    }

    #[test]
    fn parse_error_contains_no_content() {
        for (json, reason) in [
            (None, "no field `data`"),
            (Some("{\"job_id\": \"secret\""), "broken JSON"),
            (Some("[]"), "no object"),
            (Some("{}"), "no job_id"),
            (Some(r#"{"job_id":"","stage":"s","seq":1}"#), "no job_id"),
            (Some(r#"{"job_id":"secret","seq":1}"#), "no stage"),
            (Some(r#"{"job_id":"secret","stage":"s"}"#), "no seq"),
            (Some(r#"{"job_id":"secret","stage":"s","seq":-1}"#), "whole number"),
            (Some(r#"{"job_id":["secret"],"stage":"s","seq":1}"#), "no text"),
            (Some("\u{0}secret"), "broken JSON"),
        ] {
            let why = parse_event("scan", json.map(str::as_bytes)).unwrap_err();
            assert!(why.contains(reason) && !why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn trimmed_entries_are_listed_apart() {
        let bytes = |text: &str| RedisReply::Bytes(text.into());
        let fields = RedisReply::Many(vec![bytes("x"), bytes("1"), bytes("data"), bytes("{}")]);
        let read = EntryPage::parse(RedisReply::Many(vec![
            RedisReply::Many(vec![bytes("1-0"), fields]),
            RedisReply::Many(vec![bytes("2-0"), RedisReply::Nil]),
        ]));
        assert_eq!(read.present, [StreamEntry { id: "1-0".into(), data: Some(b"{}".into()) }]);
        assert_eq!(read.gone, ["2-0"]);
        assert!(EntryPage::parse(RedisReply::Nil).is_empty());
        assert!(!read.has_unnamed);
    }

    #[test]
    fn fault_16_trimmed_entries_without_a_name_are_noticed() {
        let page = EntryPage::parse(RedisReply::Many(vec![RedisReply::Nil, RedisReply::Nil]));
        assert!(page.has_unnamed && page.is_empty());
    }
}
