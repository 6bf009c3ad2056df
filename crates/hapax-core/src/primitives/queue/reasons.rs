//! The reasons of an item's failures as a store keeps them: one text, a line for each failure, the newest first.
//!
//! Stores that read a row, decide and write it call [`add`]; others repeat it where their data is.
//!
//! ```
//! use hapax_core::queue::reasons;
//! let first = reasons::add(None, "timeout", true);
//! let both = reasons::add(first.as_deref(), "refused\nfor good", true).unwrap();
//! assert_eq!(both, "refused for good\ntimeout");
//! assert_eq!(reasons::newest(&both), "refused for good");
//! assert_eq!(reasons::oldest_first(&both), ["timeout".into(), "refused for good".into()]);
//! ```

use std::sync::Arc;

/// How many reasons are kept of each item.
pub const MAX_REASONS: usize = 10;

/// How many characters are kept of each reason.
pub const MAX_REASON_CHARS: usize = 1000;

/// The stored text after one more failure. An empty reason adds nothing; nor does a failure that does not
/// count as an attempt and has the newest reason again, because an item may be given back very often.
pub fn add(stored: Option<&str>, reason: &str, counts: bool) -> Option<String> {
    let line = one_line(reason);
    let stored = stored.filter(|stored| !stored.is_empty());
    let Some(stored) = stored else { return Some(line).filter(|line| !line.is_empty()) };
    if line.is_empty() || (!counts && newest(stored) == line) {
        return Some(stored.to_owned());
    }
    let lines = std::iter::once(&*line).chain(stored.split('\n')).take(MAX_REASONS);
    Some(lines.collect::<Vec<_>>().join("\n"))
}

/// A reason as one line: control characters become spaces, and it ends after [`MAX_REASON_CHARS`].
pub fn one_line(reason: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    reason.chars().take(MAX_REASON_CHARS).map(plain).collect()
}

/// The newest reason of a stored text.
pub fn newest(stored: &str) -> &str {
    stored.split_once('\n').map_or(stored, |(newest, _)| newest)
}

/// The reasons of a stored text, the oldest first.
pub fn oldest_first(stored: &str) -> Vec<Arc<str>> {
    let lines = stored.split('\n').filter(|line| !line.is_empty()).take(MAX_REASONS);
    let mut reasons: Vec<_> = lines.map(Arc::from).collect();
    reasons.reverse();
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_keep_the_last_ten() {
        let mut stored = None;
        for failure in 1..=12 {
            stored = add(stored.as_deref(), &failure.to_string(), true);
        }
        let expected: Vec<Arc<str>> = (3..=12).map(|failure| failure.to_string().into()).collect();
        assert_eq!(oldest_first(&stored.unwrap()), expected);
    }

    #[test]
    fn reasons_repeat_a_line_only_for_attempts() {
        let once = add(None, "away", false);
        assert_eq!(add(once.as_deref(), "away", false).as_deref(), Some("away"));
        assert_eq!(add(once.as_deref(), "away", true).as_deref(), Some("away\naway"));
    }

    #[test]
    fn reasons_leave_empty_ones_out() {
        assert_eq!(add(None, "", true), None);
        assert_eq!(add(Some("x"), "", true).as_deref(), Some("x"));
        assert_eq!(add(Some(""), "x", true).as_deref(), Some("x"));
        assert!(oldest_first("").is_empty());
    }

    #[test]
    fn reason_is_one_line_of_limited_length() {
        assert_eq!(one_line("a\r\nb\0c"), "a  b c");
        assert_eq!(one_line(&"é".repeat(2000)).chars().count(), MAX_REASON_CHARS);
    }
}
