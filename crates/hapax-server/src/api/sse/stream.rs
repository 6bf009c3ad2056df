//! One event stream, independent of the sink it is written to.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::activity::StreamActivity;
use hapax::bus::{Follower, MultiFollower, MultiFrame, NextFrames};
use hapax::{Tenant, metric_names};
use metrics::{Counter, counter};
use tokio::time::{Instant, sleep_until};

use super::fanout::FanoutGroups;
use super::frame::{FrameForm, SseFrame, SseJobFrame};
use super::slots::{StreamLimits, StreamSlot, StreamSlots};
use crate::settings::ServeSettings;

/// A comment that keeps the connection and the proxies on its way from timing out.
pub(super) const KEEP_ALIVE: &str = ":\n\n";

pub(crate) struct EventStreams {
    pub(super) slots: Arc<StreamSlots>,
    deliveries: Counter,
    timings: StreamTimings,
    pub(super) fanout: Arc<FanoutGroups>,
}

#[derive(Clone, Copy)]
pub(super) struct StreamTimings {
    pub(super) keep_alive: Duration,
    retry: Duration,
    /// How long a write may make no progress.
    pub(super) write_timeout: Duration,
}

impl EventStreams {
    /// How many streams of a tenant are open, and how many may be.
    pub(crate) fn usage(&self, tenant: &Tenant) -> (usize, usize) {
        self.slots.usage(tenant)
    }

    /// The streams of a server with this number of tenants.
    pub(crate) fn new(settings: &ServeSettings, tenants: usize) -> Self {
        let timings = StreamTimings {
            keep_alive: settings.sse_keep_alive,
            retry: settings.sse_retry,
            write_timeout: settings.sse_write_timeout,
        };
        let all = settings.sse_connections;
        // One tenant may have all streams; of several, none may have more than half of them.
        let share = if tenants > 1 { all.div_ceil(2) } else { all };
        let slots = StreamSlots::new(StreamLimits {
            all,
            of_tenant: settings.sse_tenant_connections.unwrap_or(share),
            of_link: settings.sse_link_connections,
        });
        Self {
            slots,
            deliveries: counter!(metric_names::SSE_DELIVERIES),
            timings,
            fanout: Arc::default(),
        }
    }

    /// A stream from `source` that ends at `expires_at` at the latest. If it was `requested` by a client whose requests
    /// are activity, that request is recorded when the first events are ready.
    pub(super) fn new_stream(
        &self,
        slot: StreamSlot,
        source: StreamSource,
        form: FrameForm,
        expires_at: Option<Instant>,
        requested: Option<Instant>,
    ) -> EventStream {
        let (timings, deliveries, retry_sent) = (self.timings, self.deliveries.clone(), false);
        EventStream { source, form, expires_at, timings, deliveries, retry_sent, requested, slot }
    }
}

pub(super) struct EventStream {
    source: StreamSource,
    pub(super) form: FrameForm,
    /// When the signed link expires, and the stream ends.
    pub(super) expires_at: Option<Instant>,
    pub(super) timings: StreamTimings,
    deliveries: Counter,
    retry_sent: bool,
    /// When the request came, until it is recorded.
    requested: Option<Instant>,
    slot: StreamSlot,
}

/// Where a stream is written to: a taken-over socket, or a response body.
pub(super) trait FrameSink: Send {
    const FRAMING: BodyFraming;
    /// Whether an idle stream may move to the fan-out task of its job.
    const CAN_JOIN_FANOUT: bool;

    /// Writes all pieces, and leaves the vector empty.
    fn write(
        &mut self,
        pieces: &mut Vec<Bytes>,
    ) -> impl Future<Output = Result<(), StreamEnd>> + Send;

    /// Completes when the client has disconnected.
    fn disconnected(&mut self) -> impl Future<Output = ()> + Send;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// Everything was sent for now; more events may come.
    Idle,
    Complete,
    Client,
    /// The client did not read in time.
    Slow,
    Expired,
    /// The server is stopping; the client reconnects elsewhere.
    Shutdown,
}

impl StreamEnd {
    /// Whether the response body ends properly, instead of the connection being cut.
    pub(super) fn is_orderly(self) -> bool {
        matches!(self, Self::Complete | Self::Expired | Self::Shutdown)
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Complete => "complete",
            Self::Client => "client",
            Self::Slow => "slow",
            Self::Expired => "expired",
            Self::Shutdown => "shutdown",
        }
    }
}

impl EventStream {
    /// Sends events until the stream ends or, if the sink can join a fan-out, is idle.
    pub(super) async fn run(&mut self, sink: &mut impl FrameSink) -> StreamEnd {
        match self.send_until_end(sink).await {
            Ok(ended) | Err(ended) => ended,
        }
    }

    async fn send_until_end<O: FrameSink>(&mut self, sink: &mut O) -> Result<StreamEnd, StreamEnd> {
        if !std::mem::replace(&mut self.retry_sent, true) {
            sink.write(&mut vec![O::FRAMING.encode(&self.retry_hint())]).await?;
        }
        let mut deadline = std::pin::pin!(sleep_until(self.next_deadline()));
        loop {
            if self.expires_at.is_some_and(|expires_at| expires_at <= Instant::now()) {
                return Ok(StreamEnd::Expired);
            }
            if self.requested.is_some() && self.source.is_caught_up() {
                self.record_request();
            }
            if O::CAN_JOIN_FANOUT && self.is_idle() {
                return Ok(StreamEnd::Idle);
            }
            let mut pieces = Vec::new();
            tokio::select! {
                item = self.source.next(O::FRAMING, self.form, &mut pieces) => match item {
                    SourceItem::Events(count) => {
                        self.record_request();
                        self.deliveries.increment(count);
                    }
                    SourceItem::Complete => return Ok(StreamEnd::Complete),
                    SourceItem::Stopped => return Ok(StreamEnd::Shutdown),
                },
                () = sink.disconnected() => return Ok(StreamEnd::Client),
                () = &mut deadline => pieces.push(O::FRAMING.encode(KEEP_ALIVE)),
            }
            sink.write(&mut pieces).await?;
            deadline.as_mut().reset(self.next_deadline());
        }
    }

    /// Records the request for this stream, once.
    fn record_request(&mut self) {
        if let Some(requested) = self.requested.take() {
            self.slot.record_request(requested.elapsed());
        }
    }

    pub(super) fn count_end(&mut self, ended: StreamEnd) {
        self.record_request();
        counter!(metric_names::SSE_ENDED, "reason" => ended.as_str()).increment(1);
        self.slot.record(StreamActivity::Ended(ended.as_str()));
    }

    /// Whether the stream follows one job and has nothing to send.
    pub(super) fn is_idle(&self) -> bool {
        self.follower().is_some_and(Follower::is_caught_up)
    }

    pub(super) fn follower(&self) -> Option<&Follower<SseFrame>> {
        match &self.source {
            StreamSource::OneJob(follower) => Some(follower),
            StreamSource::ManyJobs(_) => None,
        }
    }

    /// Gives up what the follower read from the store, because the stream may wait for long.
    pub(super) fn release_page(&mut self) {
        if let StreamSource::OneJob(follower) = &mut self.source {
            follower.release_page();
        }
    }

    /// Records that the fan-out task sent these frames.
    pub(super) fn mark_delivered(&mut self, frames: &[SseJobFrame]) {
        if let StreamSource::OneJob(follower) = &mut self.source {
            follower.mark_seen(frames);
        }
        self.deliveries.increment(frames.len() as u64);
    }

    /// When the next keep-alive, or the end, is due.
    fn next_deadline(&self) -> Instant {
        let keep_alive = Instant::now() + self.timings.keep_alive;
        self.expires_at.map_or(keep_alive, |expires_at| expires_at.min(keep_alive))
    }

    /// The `retry:` field, different for each client, so that not all reconnect at the same time.
    fn retry_hint(&self) -> String {
        let mut random = [0; 2];
        // Without randomness all clients get the same delay; that is no reason to fail.
        let _ = getrandom::fill(&mut random);
        let share = 0.5 + f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX);
        format!("retry: {}\n\n", self.timings.retry.mul_f64(share).as_millis())
    }
}

/// How frames are laid out in a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// Bare frames; the HTTP library adds its own framing.
    Plain,
    Chunked,
}

impl BodyFraming {
    /// Encodes a text that is no event.
    pub(super) fn encode(self, text: &str) -> Bytes {
        match self {
            Self::Plain => Bytes::copy_from_slice(text.as_bytes()),
            Self::Chunked => format!("{:x}\r\n{text}\r\n", text.len()).into(),
        }
    }
}

pub(super) enum StreamSource {
    OneJob(Box<Follower<SseFrame>>),
    ManyJobs(Box<MultiFollower<SseFrame>>),
}

enum SourceItem {
    Events(u64),
    /// The last event was sent before.
    Complete,
    Stopped,
}

impl StreamSource {
    fn is_caught_up(&self) -> bool {
        match self {
            Self::OneJob(follower) => follower.is_caught_up(),
            Self::ManyJobs(followers) => followers.is_caught_up(),
        }
    }

    /// Waits for the next events and appends them to `pieces`. Cancel-safe.
    async fn next(
        &mut self,
        framing: BodyFraming,
        form: FrameForm,
        pieces: &mut Vec<Bytes>,
    ) -> SourceItem {
        match self {
            Self::OneJob(follower) => take_frames(follower.next().await, |frame| {
                frame.encoded().push_to(pieces, framing, form);
            }),
            Self::ManyJobs(followers) => {
                take_frames(followers.next().await, |MultiFrame { frame, cursor }| {
                    let id = cursor.as_ref().map(|cursor| format!("id: {cursor}\n"));
                    let id = id.unwrap_or_default();
                    frame.encoded().push_with_id(id.as_bytes(), pieces, framing, form);
                })
            }
        }
    }
}

fn take_frames<F>(next: NextFrames<F>, push: impl FnMut(&F)) -> SourceItem {
    match next {
        NextFrames::Frames(frames) => {
            frames.iter().for_each(push);
            SourceItem::Events(frames.len() as u64)
        }
        NextFrames::Complete => SourceItem::Complete,
        NextFrames::Stopped => SourceItem::Stopped,
    }
}
