//! The newest entries of a followed job, shared by all of its followers.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::frame::{EncodedFrame, JobFrame};
use crate::log::{Cursor, JobHead, LogEntry};

/// How many entries a ring keeps, and how many bytes of them; at least one entry.
pub(super) const MAX_ENTRIES: usize = 256;
pub(super) const MAX_BYTES: usize = 256 * 1024;
/// How many frames a follower takes at once, and how many bytes; at least one frame.
pub(super) const MAX_BATCH_FRAMES: usize = 32;
pub(super) const MAX_BATCH_BYTES: usize = 64 * 1024;

/// How far a follower has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FollowPosition {
    /// Before the first entry, in no epoch yet.
    Start,
    /// After the entry with this cursor.
    After(Cursor),
}

impl FollowPosition {
    /// The offset of the last entry seen.
    pub(super) fn offset(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::After(cursor) => cursor.offset,
        }
    }

    /// Whether a follower here gets the next entry without missing one.
    pub(super) fn is_held(self, head: &JobHead) -> bool {
        match self {
            Self::Start => head.first <= 1,
            Self::After(cursor) => head.holds(cursor),
        }
    }
}

/// The answer of a ring to a follower.
pub(super) enum RingLookup<F> {
    /// The next frames.
    Frames(Vec<JobFrame<F>>),
    /// The follower has read everything so far.
    CaughtUp,
    /// The follower has read everything, and the job is closed.
    Complete,
    /// The ring does not hold this position: it is too old, or of another epoch.
    NotInRing,
}

pub(super) struct Ring<F> {
    /// The cursor before the first frame; `None` where the job has no log.
    base: Option<Cursor>,
    frames: VecDeque<JobFrame<F>>,
    bytes: usize,
    closed: bool,
    /// When the last complete read began; `None` before the first one.
    read_at: Option<Instant>,
    /// Whether the first read has ended, with or without success.
    pub(super) tried: bool,
}

impl<F> Default for Ring<F> {
    fn default() -> Self {
        let (base, read_at) = (None, None);
        Self { base, frames: VecDeque::new(), bytes: 0, closed: false, read_at, tried: false }
    }
}

impl<F: EncodedFrame> Ring<F> {
    /// The cursor of the last frame; `None` where the job has no log.
    pub(super) fn end(&self) -> Option<Cursor> {
        self.frames.back().and_then(JobFrame::at).or(self.base)
    }

    /// The offset before the first frame; `None` where the job has no log.
    pub(super) fn base_offset(&self) -> Option<u64> {
        self.base.map(|base| base.offset)
    }

    /// Whether the log was read to its end at least once.
    pub(super) fn was_read(&self) -> bool {
        self.read_at.is_some()
    }

    /// Looks up what comes after this position.
    pub(super) fn after(&self, position: FollowPosition) -> RingLookup<F> {
        if !self.was_read() {
            return RingLookup::NotInRing;
        }
        let Some(base) = self.base else {
            // A cursor of a job without a log gets a gap, once the store has confirmed that.
            let is_start = position == FollowPosition::Start;
            return if is_start { RingLookup::CaughtUp } else { RingLookup::NotInRing };
        };
        let Some(next) = self.index_after(base, position) else { return RingLookup::NotInRing };
        if next < self.frames.len() {
            return RingLookup::Frames(first_batch(self.frames.range(next..)));
        }
        if self.closed { RingLookup::Complete } else { RingLookup::CaughtUp }
    }

    fn index_after(&self, base: Cursor, position: FollowPosition) -> Option<usize> {
        match position {
            FollowPosition::Start => (base.offset == 0).then_some(0),
            FollowPosition::After(cursor) if cursor == base => Some(0),
            FollowPosition::After(cursor) => {
                let i = usize::try_from(cursor.offset.checked_sub(base.offset + 1)?).ok()?;
                // Equal offset and epoch mean the same entry, and the same entries before it.
                (self.frames.get(i)?.at() == Some(cursor)).then_some(i + 1)
            }
        }
    }

    /// Records that a read which began then has completed; returns whether it was the first one.
    pub(super) fn mark_current(&mut self, began: Instant) -> bool {
        self.tried = true;
        self.read_at.replace(began).is_none()
    }

    /// Whether the ring was read after this moment and reaches this offset.
    pub(super) fn has(&self, offset: u64, since: Instant) -> bool {
        self.read_at.is_some_and(|read_at| read_at > since)
            && self.end().is_some_and(|end| end.offset >= offset)
    }

    /// Clears the ring, because the job has no log; returns whether it had one before.
    pub(super) fn clear(&mut self) -> bool {
        let had_log = self.base.is_some();
        *self = Self { read_at: self.read_at, tried: self.tried, ..Self::default() };
        had_log
    }

    /// Clears the ring, to continue after this cursor.
    pub(super) fn restart(&mut self, base: Cursor) {
        self.clear();
        self.base = Some(base);
    }

    /// Appends the entries that follow the end; returns whether anything changed.
    pub(super) fn extend(&mut self, head: &JobHead, entries: &[LogEntry]) -> bool {
        for entry in entries {
            let frame = JobFrame::entry(entry);
            self.bytes += frame.size();
            self.frames.push_back(frame);
            while self.frames.len() > MAX_ENTRIES || self.bytes > MAX_BYTES && self.frames.len() > 1
            {
                let Some(oldest) = self.frames.pop_front() else { break };
                self.bytes -= oldest.size();
                self.base = oldest.at();
            }
        }
        let closed = head.closed && self.end().is_some_and(|end| end.offset == head.last);
        let changed = !entries.is_empty() || closed != self.closed;
        self.closed = closed;
        changed
    }
}

/// The first frames, up to the limits of one batch.
pub(super) fn first_batch<'a, F: EncodedFrame>(
    frames: impl Iterator<Item = &'a JobFrame<F>>,
) -> Vec<JobFrame<F>> {
    let mut bytes = 0;
    let mut batch = Vec::new();
    for frame in frames.take(MAX_BATCH_FRAMES) {
        bytes += frame.size();
        if bytes > MAX_BATCH_BYTES && !batch.is_empty() {
            break;
        }
        batch.push(frame.clone());
    }
    batch
}
