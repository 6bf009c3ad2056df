//! Request headers: limits, headers that may occur once, and preconditions.

use hapax::Version;
use hapax::document::MatchCondition;
use hyper::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, IF_NONE_MATCH, ORIGIN,
};

use crate::api::sse::LAST_EVENT_ID;
use crate::problem::{Problem, ProblemKind};

/// How many headers a request may have, and how many bytes in all.
const MAX_HEADERS: usize = 100;
const MAX_BYTES: usize = 32 * 1024;

/// The token of a lock, command or message in requests without a body.
pub(crate) const HAPAX_TOKEN: HeaderName = HeaderName::from_static("hapax-token");

/// Proves that a request with the cookie of a session comes from the console's own page.
pub(crate) const HAPAX_CSRF: HeaderName = HeaderName::from_static("hapax-csrf");
/// An operator's note about an action, for the audit log.
pub(crate) const HAPAX_NOTE: HeaderName = HeaderName::from_static("hapax-note");

/// Headers that are ambiguous when repeated.
const SINGLE_HEADERS: [HeaderName; 11] = [
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    HOST,
    IF_MATCH,
    IF_NONE_MATCH,
    ORIGIN,
    HAPAX_CSRF,
    HAPAX_NOTE,
    HAPAX_TOKEN,
    LAST_EVENT_ID,
];

pub(crate) fn check(headers: &HeaderMap) -> Result<(), Problem> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > MAX_HEADERS || bytes > MAX_BYTES {
        let text = format!("a request may have {MAX_HEADERS} headers of {MAX_BYTES} bytes in all");
        return Err(Problem::new(ProblemKind::HeadersTooLarge, text));
    }
    SINGLE_HEADERS.iter().try_for_each(|name| single_header(headers, name).map(|_| ()))
}

/// The value of a header that may occur once.
pub(crate) fn single_header<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Problem::invalid(format!("header `{name}` is repeated"))),
    }
}

pub(crate) enum Precondition {
    Nothing,
    IfMatch(MatchCondition),
    IfNoneMatch(MatchCondition),
}

/// Parses the precondition; the two headers exclude each other.
pub(crate) fn parse_precondition(headers: &HeaderMap) -> Result<Precondition, Problem> {
    match (single_header(headers, &IF_MATCH)?, single_header(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(Precondition::Nothing),
        (Some(value), None) => Ok(Precondition::IfMatch(parse_etags("If-Match", value)?)),
        (None, Some(value)) => Ok(Precondition::IfNoneMatch(parse_etags("If-None-Match", value)?)),
        _ => Err(Problem::invalid("`If-Match` and `If-None-Match` cannot be used together")),
    }
}

/// The version that a write expects. `If-None-Match: *` is for writes that may create.
pub(crate) fn parse_expected(
    headers: &HeaderMap,
    may_create: bool,
) -> Result<MatchCondition, Problem> {
    match parse_precondition(headers)? {
        Precondition::Nothing => Ok(MatchCondition::Any),
        Precondition::IfMatch(expected) => Ok(expected),
        Precondition::IfNoneMatch(expected) => {
            Err(Problem::invalid(match (may_create, expected) {
                (true, MatchCondition::Present) => return Ok(MatchCondition::Absent),
                (true, _) => "`If-None-Match` accepts only * here",
                (false, _) => "`If-None-Match` is not supported by this request",
            }))
        }
    }
}

/// Parses `*` or a list of entity tags. Weak tags are well-formed and match nothing.
fn parse_etags(name: &str, value: &HeaderValue) -> Result<MatchCondition, Problem> {
    let malformed = || Problem::invalid(format!("`{name}` takes * or a list of quoted ETags"));
    let mut text = value.to_str().map_err(|_| malformed())?.trim();
    if text == "*" {
        return Ok(MatchCondition::Present);
    }
    let mut versions = Vec::new();
    let mut any = false;
    loop {
        text = text.trim_start_matches([' ', '\t', ',']);
        if text.is_empty() {
            break;
        }
        let (weak, rest) = text.strip_prefix("W/").map_or((false, text), |rest| (true, rest));
        let (tag, rest) =
            rest.strip_prefix('"').and_then(|rest| rest.split_once('"')).ok_or_else(malformed)?;
        let end = rest.trim_start_matches([' ', '\t']);
        if tag.contains([' ', '\t']) || !(end.is_empty() || end.starts_with(',')) {
            return Err(malformed());
        }
        any = true;
        if !weak {
            versions.push(Version::new(tag));
        }
        text = end;
    }
    if any { Ok(MatchCondition::OneOf(versions)) } else { Err(malformed()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &'static str) -> Option<MatchCondition> {
        parse_etags("If-Match", &HeaderValue::from_static(value)).ok()
    }

    #[test]
    fn etag_lists_are_parsed() {
        let some =
            |tags: &[&str]| Some(MatchCondition::OneOf(tags.iter().map(Version::new).collect()));
        assert_eq!(read("*"), Some(MatchCondition::Present));
        assert_eq!(read("\"1\""), some(&["1"]));
        assert_eq!(read(" \"1\" ,, \"a,b\",W/\"2\" "), some(&["1", "a,b"]));
        assert_eq!(read("W/\"1\""), some(&[]));
        assert_eq!(read("\"\""), some(&[""]));
    }

    #[test]
    fn malformed_etag_lists_are_refused() {
        let wrong = r#"|,|1|"1|1"|"1" "2"|*, "1"|"1", *|w/"1"|"a b""#;
        for wrong in wrong.split('|') {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
