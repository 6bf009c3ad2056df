//! Strict JSON: texts that two parsers may read differently are refused.

use std::collections::HashSet;

use serde::de::IgnoredAny;

const MAX_DEPTH: usize = 100;
/// Member names that serde_json reserves: it would turn such an object into a number.
const RESERVED_PREFIX: &str = "$serde_json::private::";

/// Why a text is refused. Names the position, never the content.
pub(crate) type JsonError = String;

/// Refuses invalid JSON, and also repeated members, strings that are not valid Unicode, and
/// nesting deeper than [`MAX_DEPTH`].
pub(crate) fn check(body: &[u8]) -> Result<(), JsonError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| format!("the body is not UTF-8 at byte {}", error.valid_up_to()))?;
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| describe(&error))?;
    check_members(text)
}

/// The parser's error without the content.
fn describe(error: &serde_json::Error) -> JsonError {
    let (line, column) = (error.line(), error.column());
    match error.classify() {
        serde_json::error::Category::Eof => "the body is not JSON: it ends too early".into(),
        _ => format!("the body is not JSON at line {line}, column {column}"),
    }
}

/// An object or array that is not closed yet.
enum OpenContainer<'a> {
    Object { names: HashSet<String>, last: &'a str },
    Array,
}

/// Walks a text that is valid JSON: only strings and brackets matter.
fn check_members(text: &str) -> Result<(), JsonError> {
    let bytes = text.as_bytes();
    let mut open: Vec<OpenContainer<'_>> = Vec::new();
    let mut name_next = false;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => {
                open.push(OpenContainer::Object { names: HashSet::new(), last: "" });
                name_next = true;
            }
            b'[' => {
                open.push(OpenContainer::Array);
                name_next = false;
            }
            b'}' | b']' => {
                open.pop();
            }
            b',' => name_next = matches!(open.last(), Some(OpenContainer::Object { .. })),
            b'"' => {
                let end = at + string_length(&bytes[at..]);
                let quoted = &text[at..end];
                let string: String = serde_json::from_str(quoted)
                    .map_err(|_| format!("{} is not valid Unicode", member_path(&open)))?;
                if name_next {
                    record_name(&mut open, string, quoted)?;
                    name_next = false;
                }
                at = end;
                continue;
            }
            _ => {}
        }
        if open.len() > MAX_DEPTH {
            return Err(format!("the body is nested deeper than {MAX_DEPTH}"));
        }
        at += 1;
    }
    Ok(())
}

fn record_name<'a>(
    open: &mut [OpenContainer<'a>],
    name: String,
    quoted: &'a str,
) -> Result<(), JsonError> {
    let Some(OpenContainer::Object { names, last }) = open.last_mut() else { return Ok(()) };
    *last = quoted;
    if name.starts_with(RESERVED_PREFIX) {
        return Err("a member has a reserved name".into());
    }
    if !names.insert(name) {
        return Err(format!("{} is repeated", member_path(open)));
    }
    Ok(())
}

/// The member that is being read: `field "a"`. Nested members may be user data and are not named.
fn member_path(open: &[OpenContainer<'_>]) -> String {
    match open {
        [OpenContainer::Object { last, .. }] if last.len() <= 66 => format!("field {last}"),
        [] => "the body".into(),
        _ => "a member inside the body".into(),
    }
}

/// The length of the string at the start, including its quotes.
fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unambiguous_json_is_accepted() {
        for good in [
            "null",
            "1",
            "-0",
            "1e400",
            "\"\"",
            "[]",
            "{}",
            " {\"a\" : [1, {\"a\": 2}]} ",
            r#"{"a":{"b":1},"b":{"b":1}}"#,
            r#"["a","a"]"#,
            r#"{"a":"\"{,"}"#,
            r#""\ud83d\ude00""#,
            "123456789012345678901234567890.5",
            r#"{"":1}"#,
        ] {
            assert_eq!(check(good.as_bytes()), Ok(()), "{good}");
        }
        let deep = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
        assert_eq!(check(deep.as_bytes()), Ok(()));
    }

    #[test]
    fn ambiguous_or_invalid_json_is_refused() {
        let deep = "[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1);
        let very_deep = "[".repeat(500_000);
        for bad in [
            "",
            " ",
            "{",
            "nul",
            "NaN",
            "Infinity",
            "01",
            "1.",
            "+1",
            "'a'",
            "{a:1}",
            "[1,]",
            "1 2",
            "{} x",
            "\u{feff}{}",
            "\"\t\"",
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"x":{"a":1,"b":2,"a":3}}]"#,
            r#""\ud83d""#,
            r#"{"\udc00":1}"#,
            "// c\n1",
            r#"{"$serde_json::private::Number":"1"}"#,
            r#"[{"\u0024serde_json::private::Number":1}]"#,
            &deep,
            &very_deep,
        ] {
            assert!(check(bad.as_bytes()).is_err(), "{bad:.60}");
        }
        assert!(check(b"\"\xff\"").is_err());
    }

    #[test]
    fn repeated_field_is_named_but_nested_members_are_not() {
        assert!(check(br#"{"ttl_ms":1,"ttl_ms":2}"#).unwrap_err().contains("\"ttl_ms\""));
        let inner = check(br#"{"a":{"U123":1,"U123":2}}"#).unwrap_err();
        assert!(!inner.contains("U123"), "{inner}");
    }
}
