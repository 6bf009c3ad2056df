//! Fan-out: one task writes the frames of a job to all idle streams of that job, so that a waiting
//! client costs no task, timer or buffer of its own. A stream that needs more than the next frames,
//! or whose socket is full, is detached and continues in a task of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use bytes::Bytes;
use hapax::Key;
use hapax::bus::{JobUpdates, ReadyFrames};
use hapax::log::Cursor;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::frame::{FrameForm, SseJobFrame};
use super::socket::{SocketSink, advance};
use super::stream::{BodyFraming, EventStream, KEEP_ALIVE, StreamEnd};

/// How many streams one group has; a job with more has several groups, on several cores.
const MAX_SUBSCRIBERS: usize = 1024;
/// After how many streams the task yields to others.
const YIELD_EVERY: usize = 128;

/// A job, and what is sent of its frames.
type GroupKey = (Key, FrameForm);

#[derive(Default)]
pub(super) struct FanoutGroups(Mutex<HashMap<GroupKey, Vec<Arc<FanoutGroup>>>>);

/// The state that a fan-out task shares with the streams that join it and with its wakers.
#[derive(Default)]
struct FanoutGroup {
    inbox: Mutex<GroupInbox>,
    notify: Notify,
}

#[derive(Default)]
struct GroupInbox {
    /// Streams that the task has not taken over yet.
    joining: Vec<Subscriber>,
    /// Slots whose sockets became readable: the client may have disconnected.
    readable: Vec<usize>,
    /// How many streams the group has, including joining ones.
    count: usize,
}

impl FanoutGroup {
    fn inbox(&self) -> MutexGuard<'_, GroupInbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Subscriber {
    socket: SocketSink,
    stream: EventStream,
}

impl FanoutGroups {
    fn table(&self) -> MutexGuard<'_, HashMap<GroupKey, Vec<Arc<FanoutGroup>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves an idle stream to a fan-out group of its job.
    pub(super) fn join(self: Arc<Self>, socket: SocketSink, mut stream: EventStream) {
        stream.release_page();
        let Some((job, updates)) = stream.follower().map(|f| (f.job().clone(), f.updates())) else {
            return;
        };
        let key = (job, stream.form);
        let mut table = self.table();
        let groups = table.entry(key.clone()).or_default();
        let subscriber = Subscriber { socket, stream };
        if let Some(group) = groups.iter().find(|group| group.inbox().count < MAX_SUBSCRIBERS) {
            let mut inbox = group.inbox();
            inbox.count += 1;
            inbox.joining.push(subscriber);
            group.notify.notify_one();
            return;
        }
        let group = Arc::new(FanoutGroup::default());
        group.inbox().count = 1;
        groups.push(group.clone());
        drop(table);
        let task = FanoutTask {
            fanout: self,
            key,
            group,
            updates,
            subscribers: Vec::new(),
            free: Vec::new(),
        };
        tokio::spawn(task.run(subscriber));
    }

    /// Removes a group without streams; returns whether it was empty.
    fn remove_if_empty(&self, key: &GroupKey, group: &Arc<FanoutGroup>) -> bool {
        let mut table = self.table();
        if group.inbox().count > 0 {
            return false;
        }
        if let Some(groups) = table.get_mut(key) {
            groups.retain(|other| !Arc::ptr_eq(other, group));
            if groups.is_empty() {
                table.remove(key);
            }
        }
        true
    }
}

struct FanoutTask {
    fanout: Arc<FanoutGroups>,
    key: GroupKey,
    group: Arc<FanoutGroup>,
    updates: JobUpdates,
    subscribers: Vec<Option<Subscriber>>,
    /// Unused indices of `subscribers`.
    free: Vec<usize>,
}

impl FanoutTask {
    async fn run(mut self, first: Subscriber) {
        let timings = first.stream.timings;
        let mut comment = Instant::now() + timings.keep_alive;
        self.add(first);
        loop {
            let deadline = self
                .subscribers
                .iter()
                .flatten()
                .filter_map(|subscriber| subscriber.stream.expires_at);
            let deadline = deadline.min().map_or(comment, |expires_at| expires_at.min(comment));
            tokio::select! {
                () = self.updates.changed() => {
                    self.send_new_frames().await;
                    comment = Instant::now() + timings.keep_alive;
                }
                () = self.group.notify.notified() => self.process_inbox(),
                () = sleep_until(deadline) => {
                    self.detach_expired();
                    if comment <= Instant::now() {
                        self.send_keep_alive().await;
                        comment = Instant::now() + timings.keep_alive;
                    }
                }
            }
            if self.is_empty() && self.fanout.remove_if_empty(&self.key, &self.group) {
                return;
            }
        }
    }

    /// Sends every stream its new frames. Frames that arrive meanwhile are included for the streams
    /// later in the round, so that under load each system call carries more.
    async fn send_new_frames(&mut self) {
        let mut batch = FrameBatch::default();
        for slot in 0..self.subscribers.len() {
            if slot % YIELD_EVERY == YIELD_EVERY - 1 {
                tokio::task::yield_now().await;
                batch = FrameBatch::default();
            }
            let Some(subscriber) = &mut self.subscribers[slot] else { continue };
            if let WriteOutcome::Detach(left) = batch.send(subscriber) {
                self.detach(slot, left);
            }
        }
    }

    async fn send_keep_alive(&mut self) {
        let comment = [BodyFraming::Chunked.encode(KEEP_ALIVE)];
        for slot in 0..self.subscribers.len() {
            if slot % YIELD_EVERY == YIELD_EVERY - 1 {
                tokio::task::yield_now().await;
            }
            let Some(subscriber) = &mut self.subscribers[slot] else { continue };
            if let WriteOutcome::Detach(left) = write(subscriber, &comment) {
                self.detach(slot, left);
            }
        }
    }

    /// Adds joining streams, and checks the connections that became readable.
    fn process_inbox(&mut self) {
        let (joining, readable) = {
            let mut inbox = self.group.inbox();
            (std::mem::take(&mut inbox.joining), std::mem::take(&mut inbox.readable))
        };
        joining.into_iter().for_each(|subscriber| self.add(subscriber));
        for slot in readable {
            self.check_connected(slot);
        }
    }

    fn add(&mut self, mut subscriber: Subscriber) {
        // The job's feed may have been recreated while the group was empty: subscribe to the new one.
        if let Some(follower) = subscriber.stream.follower().filter(|_| self.is_empty()) {
            self.updates = follower.updates();
        }
        // Send the frames that arrived while the stream was joining.
        let sent = FrameBatch::default().send(&mut subscriber);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.subscribers.push(None);
            self.subscribers.len() - 1
        });
        self.subscribers[slot] = Some(subscriber);
        match sent {
            WriteOutcome::Complete => self.check_connected(slot),
            WriteOutcome::Detach(left) => self.detach(slot, left),
        }
    }

    fn is_empty(&self) -> bool {
        self.subscribers.len() == self.free.len()
    }

    /// Removes the stream if its client has disconnected; otherwise waits for the socket to be readable.
    fn check_connected(&mut self, slot: usize) {
        let Some(subscriber) = self.subscribers.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        let waker = Waker::from(Arc::new(ReadableWaker { group: self.group.clone(), slot }));
        if !subscriber.socket.is_connected(&mut Context::from_waker(&waker)) {
            subscriber.stream.count_end(StreamEnd::Client);
            self.remove(slot);
        }
    }

    fn detach_expired(&mut self) {
        let now = Instant::now();
        for slot in 0..self.subscribers.len() {
            let expires_at =
                self.subscribers[slot].as_ref().and_then(|subscriber| subscriber.stream.expires_at);
            if expires_at.is_some_and(|expires_at| expires_at <= now) {
                self.detach(slot, Vec::new());
            }
        }
    }

    /// Moves a stream to a task of its own, which first writes `left`.
    fn detach(&mut self, slot: usize, left: Vec<Bytes>) {
        if let Some(Subscriber { socket, stream }) = self.remove(slot) {
            tokio::spawn(socket.run(left, stream, self.fanout.clone()));
        }
    }

    fn remove(&mut self, slot: usize) -> Option<Subscriber> {
        let subscriber = self.subscribers[slot].take()?;
        self.free.push(slot);
        self.group.inbox().count -= 1;
        Some(subscriber)
    }
}

/// Wakes the fan-out task when the socket of one stream becomes readable.
struct ReadableWaker {
    group: Arc<FanoutGroup>,
    slot: usize,
}

impl Wake for ReadableWaker {
    fn wake(self: Arc<Self>) {
        self.group.inbox().readable.push(self.slot);
        self.group.notify.notify_one();
    }
}

enum WriteOutcome {
    Complete,
    /// The stream needs a task of its own, which first writes these bytes.
    Detach(Vec<Bytes>),
}

/// Encoded frames that are reused for all streams at the same cursor.
#[derive(Default)]
struct FrameBatch {
    from: Option<Cursor>,
    frames: Vec<SseJobFrame>,
    pieces: Vec<Bytes>,
    /// Whether no further frames follow.
    complete: bool,
}

impl FrameBatch {
    fn send(&mut self, subscriber: &mut Subscriber) -> WriteOutcome {
        loop {
            let Some(follower) = subscriber.stream.follower() else {
                return WriteOutcome::Detach(Vec::new());
            };
            if self.frames.is_empty() || self.from != follower.cursor() {
                match follower.ready() {
                    ReadyFrames::Frames(frames) => {
                        *self = Self::new(follower.cursor(), frames, subscriber.stream.form);
                    }
                    ReadyFrames::CaughtUp => return WriteOutcome::Complete,
                    ReadyFrames::AskStore => return WriteOutcome::Detach(Vec::new()),
                }
            }
            subscriber.stream.mark_delivered(&self.frames);
            if let WriteOutcome::Detach(left) = write(subscriber, &self.pieces) {
                return WriteOutcome::Detach(left);
            }
            self.complete = self.complete || subscriber.stream.is_idle();
            if self.complete {
                return WriteOutcome::Complete;
            }
        }
    }

    fn new(from: Option<Cursor>, frames: Vec<SseJobFrame>, form: FrameForm) -> Self {
        let mut pieces = Vec::with_capacity(frames.len());
        for frame in &frames {
            frame.encoded().push_to(&mut pieces, BodyFraming::Chunked, form);
        }
        Self { from, frames, pieces, complete: false }
    }
}

fn write(subscriber: &mut Subscriber, pieces: &[Bytes]) -> WriteOutcome {
    let all: usize = pieces.iter().map(Bytes::len).sum();
    // The task that takes over a detached stream meets the same error again and handles it.
    let written = subscriber.socket.write_once(pieces).unwrap_or_default();
    if written == all {
        return WriteOutcome::Complete;
    }
    let mut left = pieces.to_vec();
    advance(&mut left, written);
    WriteOutcome::Detach(left)
}
