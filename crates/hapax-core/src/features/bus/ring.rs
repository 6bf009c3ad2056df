//! The newest entries of a job that somebody follows, shared by all who do.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::frame::Frame;
use crate::log::{Cursor, JobHead, LogEntry};

/// How many entries a ring keeps, and how many bytes of them; one entry at least.
pub(super) const MOST_ENTRIES: usize = 256;
const MOST_BYTES: usize = 256 * 1024;
/// How many frames a follower takes at once, and how many bytes; one frame at least.
pub(super) const TAKE_FRAMES: usize = 32;
pub(super) const TAKE_BYTES: usize = 64 * 1024;

/// Where a follower stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Before everything; in no epoch yet.
    Start,
    /// Behind this entry.
    After(Cursor),
}

/// What a ring has for a follower.
pub(super) enum Found {
    /// These come next.
    Frames(Vec<Frame>),
    /// Nothing yet.
    Nothing,
    /// Nothing any more: the job is closed, and this is its end.
    Complete,
    /// It does not know this place: too old, or of another life of the log.
    Elsewhere,
}

#[derive(Default)]
pub(super) struct Ring {
    /// Where its first entry follows; `None` where the job has no log.
    base: Option<Cursor>,
    frames: VecDeque<Frame>,
    bytes: usize,
    closed: bool,
    /// When the reading began that last brought it up to date; `None` where none has yet.
    read: Option<Instant>,
    /// Whether the first reading has ended, well or not.
    pub(super) tried: bool,
}

impl Ring {
    /// Where it ends; `None` where the job has no log.
    pub(super) fn end(&self) -> Option<Cursor> {
        self.frames.back().and_then(Frame::at).or(self.base)
    }

    /// What comes after this place.
    pub(super) fn after(&self, at: At) -> Found {
        if self.read.is_none() {
            return Found::Elsewhere;
        }
        // Without a log nobody can be told what is missing; the first entry will show it.
        let Some(base) = self.base else { return Found::Nothing };
        let Some(next) = self.index(base, at) else { return Found::Elsewhere };
        if next < self.frames.len() {
            return Found::Frames(some_of(self.frames.range(next..)));
        }
        if self.closed { Found::Complete } else { Found::Nothing }
    }

    /// The index of the frame that follows.
    fn index(&self, base: Cursor, at: At) -> Option<usize> {
        match at {
            At::Start => (base.offset == 0).then_some(0),
            At::After(cursor) if cursor == base => Some(0),
            At::After(cursor) => {
                let i = usize::try_from(cursor.offset.checked_sub(base.offset + 1)?).ok()?;
                // Equal offset and epoch: the very same entry, and all before it too.
                (self.frames.get(i)?.at() == Some(cursor)).then_some(i + 1)
            }
        }
    }

    /// A reading that began then has brought it up to date; whether it was the first one.
    pub(super) fn is_current(&mut self, began: Instant) -> bool {
        self.tried = true;
        self.read.replace(began).is_none()
    }

    /// Whether it was read since then, and has an entry with this offset.
    pub(super) fn has(&self, offset: u64, since: Instant) -> bool {
        self.read.is_some_and(|read| read > since)
            && self.end().is_some_and(|end| end.offset >= offset)
    }

    /// The job has no log, or none any more; whether that is news.
    pub(super) fn forget(&mut self) -> bool {
        let news = self.base.is_some();
        *self = Self { read: self.read, tried: self.tried, ..Self::default() };
        news
    }

    /// Begins anew after this place.
    pub(super) fn restart(&mut self, base: Cursor) {
        self.forget();
        self.base = Some(base);
    }

    /// Takes what follows its end; whether that is news.
    pub(super) fn extend(&mut self, head: &JobHead, entries: &[LogEntry]) -> bool {
        for entry in entries {
            let frame = Frame::entry(entry);
            self.bytes += frame.size();
            self.frames.push_back(frame);
            while self.frames.len() > MOST_ENTRIES
                || self.bytes > MOST_BYTES && self.frames.len() > 1
            {
                let Some(oldest) = self.frames.pop_front() else { break };
                self.bytes -= oldest.size();
                self.base = oldest.at();
            }
        }
        let closed = head.closed && self.end().is_some_and(|end| end.offset == head.last);
        let news = !entries.is_empty() || closed != self.closed;
        self.closed = closed;
        news
    }
}

/// The first of these frames, as many as are taken at once.
pub(super) fn some_of<'a>(frames: impl Iterator<Item = &'a Frame>) -> Vec<Frame> {
    let mut bytes = 0;
    let mut taken = Vec::new();
    for frame in frames.take(TAKE_FRAMES) {
        bytes += frame.size();
        if bytes > TAKE_BYTES && !taken.is_empty() {
            break;
        }
        taken.push(frame.clone());
    }
    taken
}
