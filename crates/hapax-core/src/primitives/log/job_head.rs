use std::time::Duration;

use super::{Cursor, Epochs, LogEntry};

/// The current state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobHead {
    /// The epochs of the job's entries.
    pub epochs: Epochs,
    /// The first offset that is still kept.
    pub first: u64,
    /// The last offset.
    pub last: u64,
    /// Whether the closing event was appended.
    pub closed: bool,
    /// The entry with the highest seq, if [`PageRequest::with_state`](super::PageRequest::with_state) asked for it.
    pub state: Option<LogEntry>,
    /// How long until the job is forgotten, unless another event is appended.
    pub expires_in: Duration,
}

impl JobHead {
    /// The cursor after the last entry.
    pub fn end(&self) -> Cursor {
        Cursor { epoch: self.epochs.last(), offset: self.last }
    }

    /// Whether a reader at this cursor gets the next entry without missing one: the cursor belongs to
    /// this log, no entry after it was trimmed, and none may have been lost right after it.
    pub fn holds(&self, cursor: Cursor) -> bool {
        let kept = cursor.offset + 1 >= self.first && cursor.offset <= self.last;
        let is_of_this_log = self.epochs.at(cursor.offset) == cursor.epoch
            && !self.epochs.may_have_lost_before(cursor.offset + 1);
        kept && (is_of_this_log || self.epochs.before(cursor.offset + 1) == cursor)
    }

    /// The cursor before the first entry that is still kept.
    pub fn start(&self) -> Cursor {
        self.epochs.before(self.first)
    }

    /// Where a reader continues, after a gap, whose cursor is not held. If the history of the cursor
    /// is known, that is where it parted from this one: the entries before are those that the reader
    /// has seen. Otherwise it is the first entry that is still kept. The result is always held.
    pub fn resume(&self, cursor: Cursor) -> Cursor {
        let parted = self.epochs.end_of(cursor.epoch);
        let parted = parted.filter(|end| (self.first..=cursor.offset + 1).contains(&(end + 1)));
        self.epochs.before(parted.map_or(self.first, |end| end + 1))
    }

    /// The entries up to the next place at which some may have been lost.
    pub fn up_to_loss<'a>(&self, entries: &'a [LogEntry]) -> &'a [LogEntry] {
        let Some(first) = entries.first() else { return entries };
        let Some(loss) = self.epochs.next_loss(first.at.offset) else { return entries };
        &entries[..entries.partition_point(|entry| entry.at.offset < loss)]
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::log::Epoch;

    fn head(epochs: &str, first: u64, last: u64) -> JobHead {
        let epochs: Epochs = epochs.parse().unwrap();
        JobHead { epochs, first, last, closed: false, state: None, expires_in: Duration::ZERO }
    }

    fn held(head: &JobHead, cursor: &str) -> bool {
        head.holds(cursor.parse().unwrap())
    }

    #[test]
    fn job_head_holds_cursors_with_every_later_entry_kept() {
        let plain = head("7@1", 1, 5);
        assert!(held(&plain, "7-0") && held(&plain, "7-3") && held(&plain, "7-5"));
        assert!(!held(&plain, "7-6"), "ahead of the log");
        assert!(!held(&plain, "6-3"), "of another epoch");
        let trimmed = head("7@1", 4, 9);
        assert!(!held(&trimmed, "7-2") && held(&trimmed, "7-3"));
    }

    #[test]
    fn job_head_after_failover_refuses_cursors_of_lost_entries() {
        let after_failover = head("7@1,9@6", 1, 8);
        assert!(held(&after_failover, "7-5"), "saw only what survived");
        assert!(!held(&after_failover, "7-6"), "saw an entry 6 that is another one now");
        assert!(held(&after_failover, "9-6") && held(&after_failover, "9-5"));
    }

    #[test]
    fn fault_13_job_head_after_a_loss_holds_no_cursor_right_before_it() {
        let head = head("7@1,9!6", 1, 8);
        assert!(held(&head, "7-4"), "entry 5 comes next");
        assert!(!held(&head, "7-5"), "entries after 5 may have been lost");
        assert!(held(&head, "9-5"), "has been told");
        for (cursor, resumes) in [("7-5", "9-5"), ("7-8", "9-5"), ("8-7", "7-0"), ("9-9", "7-0")] {
            assert_eq!(head.resume(cursor.parse().unwrap()), resumes.parse().unwrap(), "{cursor}");
        }
        let at = |offset| Cursor { epoch: head.epochs.at(offset), offset };
        let entry = |offset| LogEntry {
            at: at(offset),
            stage: "s".into(),
            seq: 1,
            closes: false,
            payload: Bytes::new(),
        };
        let entries: Vec<_> = (3..=8).map(entry).collect();
        assert_eq!(head.up_to_loss(&entries), &entries[..3]);
        assert_eq!(head.up_to_loss(&entries[3..]), &entries[3..]);
    }

    #[test]
    fn fault_03_cursor_where_a_gap_resumes_is_always_held() {
        for lossy in [false, true] {
            let mut epochs = Epochs::new(Epoch(1));
            for turn in 2..40 {
                let last = turn * 3;
                for first in [1, 2, last - 4, last] {
                    let epochs = epochs.clone();
                    let (closed, expires_in) = (false, Duration::ZERO);
                    let head = JobHead { epochs, first, last, closed, state: None, expires_in };
                    let all = (0..45).flat_map(|epoch| {
                        (0..last + 3).map(move |offset| Cursor { epoch: Epoch(epoch), offset })
                    });
                    for cursor in all {
                        assert!(head.holds(head.resume(cursor)), "{cursor} in {head:?}");
                    }
                    assert!(head.holds(head.start()) && head.holds(head.end()), "{head:?}");
                }
                epochs.turn(Epoch(turn), last + 1, lossy);
            }
        }
    }
}
