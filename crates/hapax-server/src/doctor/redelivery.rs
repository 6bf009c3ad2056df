//! Whether retentions are longer than the longest redelivery.

use std::time::Duration;

use hapax::queue::QueueName;
use hapax::{Finding, Promise, Store};

/// Checks the retention of command outcomes.
pub(super) fn outcomes(kept: Duration, longest: Duration) -> Finding {
    compared("retention", "outcomes are kept", kept, longest, "--redelivery")
}

/// Checks the inbox's retention against the longest known redelivery: the given one, or the age of the
/// oldest outbox row, which may be sent again at any time. `None` where neither is known.
pub(super) async fn inbox(
    store: &dyn Store,
    kept: Duration,
    said: Option<Duration>,
) -> Option<Finding> {
    // An unreachable store has its own finding.
    let depth = store.depth(&QueueName::outbox(), None).await.ok();
    let seen = depth.and_then(|depth| depth.oldest_age);
    let (longest, whose) = match (said, seen) {
        (Some(said), Some(seen)) if seen > said => (seen, "the oldest row of the outbox"),
        (Some(said), _) => (said, "--redelivery"),
        (None, Some(seen)) => (seen, "the oldest row of the outbox"),
        (None, None) => return None,
    };
    Some(compared("inbox.retention", "messages are recognised", kept, longest, whose))
}

fn compared(
    check: &'static str,
    what: &str,
    kept: Duration,
    longest: Duration,
    whose: &str,
) -> Finding {
    let (kept_text, longest_text) = (shown(kept), shown(longest));
    if kept < longest {
        return Finding::warn(
            check,
            Promise::Remembered,
            format!(
                "{what} for {kept_text}, but the same thing may come again after {longest_text} \
                 ({whose}): it would run a second time"
            ),
            format!("keep them for at least {longest_text}"),
        );
    }
    Finding::fine(check, format!("{kept_text}, longer than any redelivery ({longest_text})"))
}

/// The time in whole seconds, as people write it.
fn shown(time: Duration) -> String {
    let whole = if time.as_secs() > 0 { Duration::from_secs(time.as_secs()) } else { time };
    humantime::format_duration(whole).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax::Severity;
    use hapax::memory::MemoryStore;

    const DAY: Duration = Duration::from_secs(86_400);
    const WEEK: Duration = Duration::from_secs(7 * 86_400);

    #[test]
    fn outcome_retention_below_redelivery_is_a_warning() {
        assert_eq!(outcomes(DAY, WEEK).severity, Severity::Warn);
        assert_eq!(outcomes(WEEK, DAY).severity, Severity::Fine);
        assert_eq!(outcomes(DAY, DAY).severity, Severity::Fine);
    }

    #[tokio::test]
    async fn inbox_retention_below_redelivery_is_a_warning() {
        let store = MemoryStore::default();
        let found = inbox(&store, DAY, Some(WEEK)).await.unwrap();
        assert_eq!((found.check, found.severity), ("inbox.retention", Severity::Warn));
        let found = inbox(&store, WEEK, Some(DAY)).await.unwrap();
        assert_eq!(found.severity, Severity::Fine);
        assert_eq!(inbox(&store, WEEK, None).await, None);
    }
}
