//! Headers that may come once, and preconditions.

use hapax::Version;
use hapax::record::Match;
use hyper::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, IF_NONE_MATCH, ORIGIN,
};

use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::sse::LAST_EVENT_ID;

/// The most headers, and the most bytes in them, of one request.
const MOST_HEADERS: usize = 100;
const MOST_BYTES: usize = 32 * 1024;

/// The secret of a lock or command in calls without a body.
pub(crate) const HAPAX_TOKEN: HeaderName = HeaderName::from_static("hapax-token");

/// Headers that mean nothing when they are there twice.
const SINGLES: [HeaderName; 9] = [
    AUTHORIZATION,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    HOST,
    IF_MATCH,
    IF_NONE_MATCH,
    ORIGIN,
    HAPAX_TOKEN,
    LAST_EVENT_ID,
];

/// Refuses too many headers, and doubled ones.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), Problem> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > MOST_HEADERS || bytes > MOST_BYTES {
        let text = format!("a request takes {MOST_HEADERS} headers of {MOST_BYTES} bytes in all");
        return Err(Problem::new(ProblemKind::HeadersTooLarge, text));
    }
    SINGLES.iter().try_for_each(|name| one(headers, name).map(|_| ()))
}

/// A header that may come once.
pub(crate) fn one<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, Problem> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Problem::invalid(format!("header `{name}` is there twice"))),
    }
}

/// What `If-Match` and `If-None-Match` expect.
pub(crate) enum Precondition {
    Nothing,
    IfMatch(Match),
    IfNoneMatch(Match),
}

/// Reads the preconditions; there may be one of the two.
pub(crate) fn precondition(headers: &HeaderMap) -> Result<Precondition, Problem> {
    match (one(headers, &IF_MATCH)?, one(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(Precondition::Nothing),
        (Some(value), None) => Ok(Precondition::IfMatch(tags("If-Match", value)?)),
        (None, Some(value)) => Ok(Precondition::IfNoneMatch(tags("If-None-Match", value)?)),
        _ => Err(Problem::invalid("`If-Match` and `If-None-Match` cannot be used together")),
    }
}

/// What a change expects. `If-None-Match: *` is for those that may create.
pub(crate) fn expected(headers: &HeaderMap, may_create: bool) -> Result<Match, Problem> {
    match precondition(headers)? {
        Precondition::Nothing => Ok(Match::Any),
        Precondition::IfMatch(expected) => Ok(expected),
        Precondition::IfNoneMatch(Match::Present) if may_create => Ok(Match::Absent),
        Precondition::IfNoneMatch(_) if may_create => {
            Err(Problem::invalid("`If-None-Match` takes * here"))
        }
        Precondition::IfNoneMatch(_) => {
            Err(Problem::invalid("`If-None-Match` is not taken by this call"))
        }
    }
}

/// `*`, or a list of entity tags. Weak ones are well-formed and match nothing.
fn tags(name: &str, value: &HeaderValue) -> Result<Match, Problem> {
    let malformed = || Problem::invalid(format!("`{name}` takes * or a list of quoted ETags"));
    let mut text = value.to_str().map_err(|_| malformed())?.trim();
    if text == "*" {
        return Ok(Match::Present);
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
    if any { Ok(Match::OneOf(versions)) } else { Err(malformed()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &'static str) -> Option<Match> {
        tags("If-Match", &HeaderValue::from_static(value)).ok()
    }

    #[test]
    fn lists_of_tags_are_read() {
        let some = |tags: &[&str]| Some(Match::OneOf(tags.iter().map(Version::new).collect()));
        assert_eq!(read("*"), Some(Match::Present));
        assert_eq!(read("\"1\""), some(&["1"]));
        assert_eq!(read(" \"1\" ,, \"a,b\",W/\"2\" "), some(&["1", "a,b"]));
        assert_eq!(read("W/\"1\""), some(&[]));
        assert_eq!(read("\"\""), some(&[""]));
    }

    #[test]
    fn anything_else_is_malformed() {
        for wrong in [
            "",
            ",",
            "1",
            "\"1",
            "1\"",
            "\"1\" \"2\"",
            "*, \"1\"",
            "\"1\", *",
            "w/\"1\"",
            "\"a b\"",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
