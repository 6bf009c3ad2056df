//! Problem documents for requests that reach no handler: their headers do not arrive in time, or
//! the HTTP library refuses them.

use std::sync::LazyLock;

use super::problem::{Problem, ProblemKind};
use crate::daemon::EarlyRefusals;

static SLOW: LazyLock<Vec<u8>> = LazyLock::new(|| {
    whole(ProblemKind::RequestTimeout, "Request Timeout", "the headers did not arrive in time")
});
static MALFORMED: LazyLock<Vec<u8>> = LazyLock::new(|| {
    whole(ProblemKind::InvalidRequest, "Bad Request", "the HTTP request is malformed")
});
static LARGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    whole(
        ProblemKind::HeadersTooLarge,
        "Request Header Fields Too Large",
        "the headers are too large",
    )
});

pub(crate) const REFUSALS: EarlyRefusals = EarlyRefusals { too_slow: || &SLOW, instead_of };

/// The problem document that replaces a response which the HTTP library generated. Such a response
/// has no body and lacks the request id that all of ours carry.
fn instead_of(answer: &[u8]) -> Option<&'static [u8]> {
    let refused = |status: &[u8]| {
        let line = answer.strip_prefix(b"HTTP/1.1 ").or(answer.strip_prefix(b"HTTP/1.0 "));
        line.is_some_and(|line| line.starts_with(status)) && !is_ours(answer)
    };
    if refused(b"400 ") {
        return Some(&MALFORMED);
    }
    (refused(b"431 ") || refused(b"414 ")).then_some(LARGE.as_slice())
}

fn is_ours(answer: &[u8]) -> bool {
    let mark = super::router::REQUEST_ID;
    answer.windows(mark.as_str().len()).any(|bytes| bytes == mark.as_str().as_bytes())
}

fn whole(kind: ProblemKind, phrase: &str, detail: &'static str) -> Vec<u8> {
    let document = Problem::new(kind, detail).document();
    format!(
        "HTTP/1.1 {} {phrase}\r\nconnection: close\r\ncontent-type: application/problem+json\r\n\
         content-length: {}\r\n\r\n{document}",
        kind.status().as_u16(),
        document.len(),
    )
    .into_bytes()
}
