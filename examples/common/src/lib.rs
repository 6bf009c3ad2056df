//! Plumbing that the examples share, so that each example shows only what is its own.

#[cfg(feature = "bot-process")]
pub mod bot_process;
#[cfg(feature = "line-bot")]
pub mod bot_server;
pub mod database;
#[cfg(feature = "line-bot")]
pub mod demo;

/// Crash point for the tests: aborts the process if the environment variable names this point.
pub fn abort_if(variable: &str, point: &str) {
    if std::env::var(variable).is_ok_and(|wanted| wanted == point) {
        std::process::abort();
    }
}

/// Truncates a text to this many UTF-16 units, in which LINE counts, with an ellipsis at the end.
pub fn truncate_utf16(text: &str, max: usize) -> String {
    if text.encode_utf16().count() <= max {
        return text.to_owned();
    }
    let mut length = 1;
    let fits = |c: &char| {
        length += c.len_utf16();
        length <= max
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_what_line_takes() {
        assert_eq!(truncate_utf16("🥚", 5000), "🥚");
        assert_eq!(truncate_utf16(&"🥚".repeat(2500), 5000), "🥚".repeat(2500));
        assert_eq!(truncate_utf16(&"🥚".repeat(5000), 5000), "🥚".repeat(2499) + "…");
    }

    #[test]
    fn labels_are_no_longer_than_line_takes_them() {
        assert_eq!(truncate_utf16("台北（臺灣）", 20), "台北（臺灣）");
        assert_eq!(truncate_utf16(&"山".repeat(20), 20), "山".repeat(20));
        assert_eq!(truncate_utf16(&"山".repeat(21), 20), "山".repeat(19) + "…");
        assert_eq!(truncate_utf16(&"🥚".repeat(11), 20), "🥚".repeat(9) + "…");
    }
}
