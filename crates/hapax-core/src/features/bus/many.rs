//! Following several jobs at once, with one id for the places in all of them.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::str::FromStr;
use std::task::Poll;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::follow::{FollowFrom, Follower, NextFrames};
use super::frame::{Frame, FrameKind};
use super::{Bus, BusError};
use crate::Key;
use crate::log::{Cursor, Epoch, InvalidCursor, MAX_NUMBER};

/// The most jobs that are followed together: an id goes out with every event, and must stay short.
pub const MAX_JOBS: usize = 32;

/// The places in several jobs as one short text. Jobs are known by 32 bits of their digest, so that
/// it can be read whatever the order of the jobs; those that it does not name begin at their start.
///
/// ```
/// use hapax_core::{bus::MultiCursor, log::{Cursor, Epoch}, Key, Tenant};
/// let job = Key::job(&Tenant::default(), "scan", "1").unwrap();
/// let other = Key::job(&Tenant::default(), "scan", "2").unwrap();
/// let mut bookmark = MultiCursor::default();
/// bookmark.put(&job, Cursor { epoch: Epoch(7), offset: 42 });
/// let read: MultiCursor = bookmark.to_string().parse().unwrap();
/// assert_eq!(read.get(&job), Some(Cursor { epoch: Epoch(7), offset: 42 }));
/// assert_eq!(read.get(&other), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultiCursor(Vec<(u32, Cursor)>);

impl MultiCursor {
    /// The place in this job.
    pub fn get(&self, job: &Key) -> Option<Cursor> {
        let tag = tag(job);
        self.0.iter().find(|(other, _)| *other == tag).map(|(_, cursor)| *cursor)
    }

    /// Whether a bookmark can hold a place in each of these jobs.
    pub fn tells_apart(jobs: &[Key]) -> bool {
        let mut tags: Vec<_> = jobs.iter().map(tag).collect();
        tags.sort_unstable();
        tags.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// Keeps the place in this job.
    pub fn put(&mut self, job: &Key, cursor: Cursor) {
        let tag = tag(job);
        match self.0.iter_mut().find(|(other, _)| *other == tag) {
            Some((_, place)) => *place = cursor,
            None => self.0.push((tag, cursor)),
        }
    }
}

/// What a [`MultiCursor`] knows of a job. Two jobs of one bookmark must not share it; an epoch tells
/// those of different bookmarks apart.
fn tag(job: &Key) -> u32 {
    let digest = job.digest();
    u32::try_from((digest ^ (digest >> 32)) & u64::from(u32::MAX)).unwrap_or_default()
}

impl fmt::Display for MultiCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::with_capacity(self.0.len() * 16);
        for (tag, cursor) in &self.0 {
            bytes.extend(tag.to_be_bytes());
            put_number(&mut bytes, cursor.epoch.0);
            put_number(&mut bytes, cursor.offset);
        }
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for MultiCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidCursor)?;
        let mut rest = bytes.as_slice();
        let mut places: Vec<(u32, Cursor)> = Vec::new();
        while let Some((tag, after)) = rest.split_first_chunk() {
            rest = after;
            let tag = u32::from_be_bytes(*tag);
            let epoch = Epoch(take_number(&mut rest)?);
            let cursor = Cursor { epoch, offset: take_number(&mut rest)? };
            if places.len() == MAX_JOBS || places.iter().any(|(other, _)| *other == tag) {
                return Err(InvalidCursor);
            }
            places.push((tag, cursor));
        }
        if rest.is_empty() { Ok(Self(places)) } else { Err(InvalidCursor) }
    }
}

/// Seven bits a byte, the lowest first.
fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Result<u64, InvalidCursor> {
    let mut number = 0;
    for shift in (0..).step_by(7).take(8) {
        let (byte, rest) = bytes.split_first().ok_or(InvalidCursor)?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return if number <= MAX_NUMBER { Ok(number) } else { Err(InvalidCursor) };
        }
    }
    Err(InvalidCursor)
}

/// A frame of one of several jobs.
#[derive(Clone, Debug)]
pub struct MultiFrame {
    /// What it tells; its own id is of its job alone.
    pub frame: Frame,
    /// Where a follower of all of them goes on that has seen it; `None` for a gap.
    pub bookmark: Option<MultiCursor>,
}

/// A follower of several jobs.
pub struct MultiFollower {
    /// `None` where all of it was seen.
    each: Vec<Option<Follower>>,
    seen: MultiCursor,
    turn: usize,
}

impl Bus {
    /// Follows several jobs, from where the bookmark says; `None` where all are closed and everything
    /// was seen. Takes up to [`MAX_JOBS`] jobs that are all different.
    pub async fn follow_all(
        &self,
        jobs: &[Key],
        bookmark: &MultiCursor,
    ) -> Result<Option<MultiFollower>, BusError> {
        let (mut each, mut seen) = (Vec::with_capacity(jobs.len()), MultiCursor::default());
        for job in jobs {
            let since = bookmark.get(job).map_or(FollowFrom::Start, FollowFrom::Cursor);
            if let FollowFrom::Cursor(cursor) = since {
                seen.put(job, cursor);
            }
            each.push(Follower::begin(&self.shared.registry, job, since).await?);
        }
        let complete = each.iter().all(Option::is_none);
        Ok((!complete).then_some(MultiFollower { each, seen, turn: 0 }))
    }
}

impl MultiFollower {
    /// Waits for what comes next in any of the jobs. Whoever drops the future in between misses
    /// nothing.
    pub async fn next(&mut self) -> NextFrames<MultiFrame> {
        loop {
            if let Some(next) = self.try_next().await {
                return next;
            }
            self.changed().await;
        }
    }

    /// One job after the other, so that a busy one does not keep the others back.
    async fn try_next(&mut self) -> Option<NextFrames<MultiFrame>> {
        let jobs = self.each.len();
        for _ in 0..jobs {
            self.turn = (self.turn + 1) % jobs;
            let Some(follower) = &mut self.each[self.turn] else { continue };
            match follower.try_next().await {
                None => {}
                Some(NextFrames::Stopped) => return Some(NextFrames::Stopped),
                Some(NextFrames::Complete) => self.each[self.turn] = None,
                Some(NextFrames::Frames(frames)) => {
                    let job = follower.job().clone();
                    return Some(NextFrames::Frames(self.marked(&job, frames)));
                }
            }
        }
        self.each.iter().all(Option::is_none).then_some(NextFrames::Complete)
    }

    fn marked(&mut self, job: &Key, frames: Vec<Frame>) -> Vec<MultiFrame> {
        let mark = |frame: Frame| {
            let bookmark = frame.at().map(|cursor| {
                self.seen.put(job, cursor);
                self.seen.clone()
            });
            let frame = if frame.kind() == FrameKind::Gap { frame.gap_of(job) } else { frame };
            MultiFrame { frame, bookmark }
        };
        frames.into_iter().map(mark).collect()
    }

    async fn changed(&mut self) {
        let mut changes: Vec<_> =
            self.each.iter_mut().flatten().map(|follower| Box::pin(follower.changed())).collect();
        let any = poll_fn(|context| {
            let mut ready = changes.iter_mut().map(|change| change.as_mut().poll(context));
            if ready.any(|polled| polled.is_ready()) { Poll::Ready(()) } else { Poll::Pending }
        });
        pin!(any).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tenant;

    #[test]
    fn a_bookmark_is_short_and_read_back() {
        let mut bookmark = MultiCursor::default();
        let epoch = Epoch(1_700_000_000_000_000);
        for i in 0..MAX_JOBS {
            let job = Key::job(&Tenant::default(), "scan", &format!("job-{i}")).unwrap();
            bookmark.put(&job, Cursor { epoch, offset: i as u64 * 100 });
        }
        let text = bookmark.to_string();
        assert!(text.len() <= MAX_JOBS * 20, "{}", text.len());
        assert_eq!(text.parse(), Ok(bookmark));
        assert_eq!("".parse(), Ok(MultiCursor::default()));
    }

    #[test]
    fn anything_else_is_malformed() {
        let job = Key::job(&Tenant::default(), "scan", "1").unwrap();
        let mut bookmark = MultiCursor::default();
        bookmark.put(&job, Cursor { epoch: Epoch(MAX_NUMBER), offset: MAX_NUMBER });
        let text = bookmark.to_string();
        assert_eq!(text.parse(), Ok(bookmark));
        let twice = BASE64_URL_SAFE_NO_PAD.decode(&text).unwrap().repeat(2);
        for wrong in [
            "7-42",
            "!",
            &text[..text.len() - 4],
            &BASE64_URL_SAFE_NO_PAD.encode(twice),
            &BASE64_URL_SAFE_NO_PAD
                .encode([0, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1]),
            &BASE64_URL_SAFE_NO_PAD.encode([0, 0, 0]),
        ] {
            assert_eq!(wrong.parse::<MultiCursor>(), Err(InvalidCursor), "{wrong}");
        }
    }
}
