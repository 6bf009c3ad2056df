//! Following several jobs at once, with one cursor for the positions in all of them.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::str::FromStr;
use std::task::Poll;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::follow::{FollowFrom, Follower, NextFrames};
use super::frame::{EncodedFrame, FrameKind, JobFrame, JsonFrame};
use super::{Bus, BusError};
use crate::Key;
use crate::log::{Cursor, Epoch, InvalidCursor, MAX_NUMBER};

/// The most jobs that one [`MultiFollower`] follows. The cursor is sent with every event and must
/// stay short.
pub const MAX_JOBS: usize = 32;

/// The positions in several jobs as one short text. A job is identified by 32 bits of its digest, so
/// that the order of the jobs does not matter; a job that is not named begins at its start.
///
/// ```
/// use hapax_core::{bus::MultiCursor, log::{Cursor, Epoch}, Key, Tenant};
/// let job = Key::job(&Tenant::default(), "scan", "1").unwrap();
/// let other = Key::job(&Tenant::default(), "scan", "2").unwrap();
/// let mut cursor = MultiCursor::default();
/// cursor.put(&job, Cursor { epoch: Epoch(7), offset: 42 });
/// let read: MultiCursor = cursor.to_string().parse().unwrap();
/// assert_eq!(read.get(&job), Some(Cursor { epoch: Epoch(7), offset: 42 }));
/// assert_eq!(read.get(&other), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MultiCursor(Vec<(u32, Cursor)>);

impl MultiCursor {
    /// The cursor of this job.
    pub fn get(&self, job: &Key) -> Option<Cursor> {
        let tag = tag(job);
        self.0.iter().find(|(other, _)| *other == tag).map(|(_, cursor)| *cursor)
    }

    /// Whether these jobs have different tags, so that one cursor can hold a position in each.
    pub fn can_distinguish(jobs: &[Key]) -> bool {
        let mut tags: Vec<_> = jobs.iter().map(tag).collect();
        tags.sort_unstable();
        tags.windows(2).all(|pair| pair[0] != pair[1])
    }

    /// Sets the cursor of this job.
    pub fn put(&mut self, job: &Key, cursor: Cursor) {
        let tag = tag(job);
        match self.0.iter_mut().find(|(other, _)| *other == tag) {
            Some((_, place)) => *place = cursor,
            None => self.0.push((tag, cursor)),
        }
    }

    /// Removes the cursor of this job, which then begins at its start.
    fn remove(&mut self, job: &Key) {
        let tag = tag(job);
        self.0.retain(|(other, _)| *other != tag);
    }
}

/// The identity of a job inside a [`MultiCursor`], where tags are unique. A cursor that is presented
/// for other jobs of the same tag is refused by its epoch.
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

/// Little-endian base 128 (LEB128).
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

/// A frame of one of several followed jobs.
#[derive(Clone, Debug)]
pub struct MultiFrame<F = JsonFrame> {
    /// The frame; its own cursor is that of its job alone.
    pub frame: JobFrame<F>,
    /// Where a follower of all the jobs continues after this frame; `None` for a gap.
    pub cursor: Option<MultiCursor>,
}

/// A follower of several jobs.
pub struct MultiFollower<F = JsonFrame> {
    /// `None` for a job that is complete.
    followers: Vec<Option<Follower<F>>>,
    cursor: MultiCursor,
    /// The job that was asked last.
    turn: usize,
}

impl<F: EncodedFrame> Bus<F> {
    /// Follows several jobs, each after its position in `cursor`; `None` where all jobs are closed
    /// and every entry was seen. Takes up to [`MAX_JOBS`] different jobs.
    pub async fn follow_all(
        &self,
        jobs: &[Key],
        cursor: &MultiCursor,
    ) -> Result<Option<MultiFollower<F>>, BusError> {
        let (mut followers, mut seen) = (Vec::with_capacity(jobs.len()), MultiCursor::default());
        for job in jobs {
            let from = cursor.get(job).map_or(FollowFrom::Start, FollowFrom::Cursor);
            if let FollowFrom::Cursor(cursor) = from {
                seen.put(job, cursor);
            }
            followers.push(Follower::begin(&self.shared.registry, job, from).await?);
        }
        let complete = followers.iter().all(Option::is_none);
        Ok((!complete).then_some(MultiFollower { followers, cursor: seen, turn: 0 }))
    }
}

impl<F: EncodedFrame> MultiFollower<F> {
    /// Waits for the next frames of any of the jobs. Cancel-safe: dropping the future loses nothing.
    pub async fn next(&mut self) -> NextFrames<MultiFrame<F>> {
        loop {
            if let Some(next) = self.try_next().await {
                return next;
            }
            self.changed().await;
        }
    }

    /// Whether every entry so far was delivered, as far as memory tells.
    pub fn is_caught_up(&self) -> bool {
        self.followers.iter().flatten().all(Follower::is_caught_up)
    }

    /// Asks the jobs in turn, so that a busy job does not starve the others.
    async fn try_next(&mut self) -> Option<NextFrames<MultiFrame<F>>> {
        let jobs = self.followers.len();
        for _ in 0..jobs {
            self.turn = (self.turn + 1) % jobs;
            let Some(follower) = &mut self.followers[self.turn] else { continue };
            match follower.try_next().await {
                None => {}
                Some(NextFrames::Stopped) => return Some(NextFrames::Stopped),
                Some(NextFrames::Complete) => self.followers[self.turn] = None,
                Some(NextFrames::Frames(frames)) => {
                    let job = follower.job().clone();
                    return Some(NextFrames::Frames(self.with_cursors(&job, frames)));
                }
            }
        }
        self.followers.iter().all(Option::is_none).then_some(NextFrames::Complete)
    }

    fn with_cursors(&mut self, job: &Key, frames: Vec<JobFrame<F>>) -> Vec<MultiFrame<F>> {
        let with_cursor = |frame: JobFrame<F>| {
            let cursor = frame.at().map(|at| {
                self.cursor.put(job, at);
                self.cursor.clone()
            });
            let frame = match frame.kind() {
                FrameKind::Gap { from, to } => {
                    if to.is_none() {
                        // The next id must not name a position of a forgotten log again.
                        self.cursor.remove(job);
                    }
                    JobFrame::gap(Some(job), from, to)
                }
                FrameKind::Entry | FrameKind::Snapshot => frame,
            };
            MultiFrame { frame, cursor }
        };
        frames.into_iter().map(with_cursor).collect()
    }

    async fn changed(&mut self) {
        let followers = self.followers.iter_mut().flatten();
        let mut changes: Vec<_> = followers.map(|follower| Box::pin(follower.changed())).collect();
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
    fn multi_cursor_is_short_and_read_back() {
        let mut cursor = MultiCursor::default();
        let epoch = Epoch(1_700_000_000_000_000);
        for i in 0..MAX_JOBS {
            let job = Key::job(&Tenant::default(), "scan", &format!("job-{i}")).unwrap();
            cursor.put(&job, Cursor { epoch, offset: i as u64 * 100 });
        }
        let text = cursor.to_string();
        assert!(text.len() <= MAX_JOBS * 20, "{}", text.len());
        assert_eq!(text.parse(), Ok(cursor));
        assert_eq!("".parse(), Ok(MultiCursor::default()));
    }

    #[test]
    fn multi_cursor_refuses_malformed_text() {
        let job = Key::job(&Tenant::default(), "scan", "1").unwrap();
        let mut cursor = MultiCursor::default();
        cursor.put(&job, Cursor { epoch: Epoch(MAX_NUMBER), offset: MAX_NUMBER });
        let text = cursor.to_string();
        assert_eq!(text.parse(), Ok(cursor));
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
