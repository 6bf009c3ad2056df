//! One event stream, whatever it is written to.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::bus::{Follower, Frame, Ready};
use hapax::meters;
use metrics::{Counter, counter, gauge};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::fanout::Crowds;
use super::source::{Came, Framing, Source};
use crate::serve::problem::{Problem, ProblemKind};
use crate::settings::Settings;

/// What keeps a connection, and whoever is in between, awake.
pub(super) const KEEP_ALIVE: &str = ":\n\n";

/// All streams of a server.
pub(crate) struct Streams {
    places: Arc<Semaphore>,
    deliveries: Counter,
    rules: Rules,
    pub(super) crowds: Arc<Crowds>,
}

#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) keep_alive: Duration,
    retry: Duration,
    /// How long a client may read nothing.
    pub(super) write: Duration,
}

/// The place of one stream.
pub(super) struct Place(
    #[expect(dead_code, reason = "given back when it is dropped")] OwnedSemaphorePermit,
);

impl Drop for Place {
    fn drop(&mut self) {
        gauge!(meters::SSE_CONNECTIONS).decrement(1.0);
    }
}

impl Streams {
    pub(crate) fn new(settings: &Settings) -> Self {
        let rules = Rules {
            keep_alive: settings.sse_keep_alive,
            retry: settings.sse_retry,
            write: settings.sse_write_timeout,
        };
        let places = Arc::new(Semaphore::new(settings.sse_connections));
        Self { places, deliveries: counter!(meters::SSE_DELIVERIES), rules, crowds: Arc::default() }
    }

    /// A place for one more.
    pub(super) fn enter(&self) -> Result<Place, Problem> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            Problem::new(
                ProblemKind::TooManyStreams,
                "as many event streams as are allowed are open",
            )
            .retry_after(Duration::from_secs(5))
        })?;
        gauge!(meters::SSE_CONNECTIONS).increment(1.0);
        Ok(Place(place))
    }

    /// A stream of this, up to that moment.
    pub(super) fn begin(&self, place: Place, source: Source, ends: Option<Instant>) -> Stream {
        let (rules, deliveries) = (self.rules, self.deliveries.clone());
        Stream { source, ends, rules, deliveries, greeted: false, _place: place }
    }
}

/// What is still to be sent, to somebody.
pub(super) struct Stream {
    source: Source,
    /// When it ends whatever comes.
    pub(super) ends: Option<Instant>,
    pub(super) rules: Rules,
    deliveries: Counter,
    greeted: bool,
    _place: Place,
}

/// Where a stream is written to.
pub(super) trait Outlet: Send {
    const FRAMING: Framing;
    /// Whether a stream may be left alone while it has nothing to send.
    const MAY_IDLE: bool;

    /// Writes all of it, and leaves nothing there.
    fn write(&mut self, pieces: &mut Vec<Bytes>) -> impl Future<Output = Result<(), Ended>> + Send;

    /// Completes when the client has gone.
    fn gone(&mut self) -> impl Future<Output = ()> + Send;
}

/// Why nothing more is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Only for now: everything was sent, and more may come.
    Idle,
    /// The last event was sent.
    Complete,
    /// The client went away.
    Client,
    /// The client did not read.
    Slow,
    /// The link was good until now.
    Expired,
    /// The server stops; another one goes on.
    Shutdown,
}

impl Ended {
    /// Whether the client is to see an orderly end.
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

impl Stream {
    /// Sends what comes until there is an end.
    pub(super) async fn run(&mut self, outlet: &mut impl Outlet) -> Ended {
        match self.send(outlet).await {
            Ok(ended) | Err(ended) => ended,
        }
    }

    async fn send<O: Outlet>(&mut self, outlet: &mut O) -> Result<Ended, Ended> {
        if !std::mem::replace(&mut self.greeted, true) {
            outlet.write(&mut vec![O::FRAMING.of(&self.hello())]).await?;
        }
        let mut alarm = std::pin::pin!(sleep_until(self.next_alarm()));
        loop {
            if self.ends.is_some_and(|ends| ends <= Instant::now()) {
                return Ok(Ended::Expired);
            }
            if O::MAY_IDLE && self.is_idle() {
                return Ok(Ended::Idle);
            }
            let mut pieces = Vec::new();
            tokio::select! {
                came = self.source.next(O::FRAMING, &mut pieces) => match came {
                    Came::Events(count) => self.deliveries.increment(count),
                    Came::Complete => return Ok(Ended::Complete),
                    Came::Stopped => return Ok(Ended::Shutdown),
                },
                () = outlet.gone() => return Ok(Ended::Client),
                () = &mut alarm => pieces.push(O::FRAMING.of(KEEP_ALIVE)),
            }
            outlet.write(&mut pieces).await?;
            alarm.as_mut().reset(self.next_alarm());
        }
    }

    /// Counts it.
    pub(super) fn ended(&self, ended: Ended) {
        counter!(meters::SSE_ENDED, "reason" => ended.as_str()).increment(1);
    }

    /// Whether there is nothing to do for it but to wait together with others.
    pub(super) fn is_idle(&self) -> bool {
        self.follower().is_some_and(|follower| matches!(follower.ready(), Ready::Nothing))
    }

    /// Whose events it sends, where that is one job.
    pub(super) fn follower(&self) -> Option<&Follower> {
        match &self.source {
            Source::One(follower) => Some(follower),
            Source::Many(_) => None,
        }
    }

    /// These were sent for it.
    pub(super) fn delivered(&mut self, frames: &[Frame]) {
        if let Source::One(follower) = &mut self.source {
            follower.seen(frames);
        }
        self.deliveries.increment(frames.len() as u64);
    }

    /// When something is to be done although nothing came.
    fn next_alarm(&self) -> Instant {
        let keep_alive = Instant::now() + self.rules.keep_alive;
        self.ends.map_or(keep_alive, |ends| ends.min(keep_alive))
    }

    /// Opens the stream, and says when to come back; everybody at another time, so that a restart
    /// does not bring them all at once.
    fn hello(&self) -> String {
        let mut random = [0; 2];
        // Without randomness everybody comes back at the same time, which is no reason to fail.
        let _ = getrandom::fill(&mut random);
        let share = 0.5 + f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX);
        format!("retry: {}\n\n", self.rules.retry.mul_f64(share).as_millis())
    }
}
