//! The one way to the sink: how many pass at once, who failed it, and whether it is there.

use std::borrow::Cow;
use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::meters;
use hapax_core::queue::ItemId;
use metrics::{Counter, Gauge, Histogram};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::{Again, Failure};

type Reason = Cow<'static, str>;

/// What is to be done about a row that was sent, or not.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Delivered,
    /// The row failed; it counts.
    Failed {
        reason: Reason,
        again: Again,
    },
    /// It was not sent, or the sink failed; it does not count.
    HandBack(Reason),
}

/// Whether the sink is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It answers, as far as is known.
    Up,
    /// It does not, and why.
    Down(Cow<'static, str>),
}

pub(crate) struct Gate {
    sink: &'static str,
    limit: Duration,
    /// Everybody takes one; who must be alone takes them all.
    permits: Semaphore,
    all: u32,
    air: Mutex<Air>,
    health: watch::Sender<Health>,
    meters: OnceLock<Meters>,
}

/// What every row moves. Looked up with the first one, and kept: names and labels would be put
/// together and searched for with each row.
pub(crate) struct Meters {
    in_flight: Gauge,
    delivered: Counter,
    send: Histogram,
    pub(crate) lag: Histogram,
}

/// What is in the air. Flights are numbered.
#[derive(Default)]
struct Air {
    last: u64,
    in_flight: HashSet<u64>,
    /// How many flights ended without an answer; grows.
    silences: u64,
    /// How often the sink fell silent since the last answer: a cut that ends many flights is one
    /// silence. Above zero the relay is careful.
    in_a_row: u32,
    /// Rows that were in the air when a connection was cut: from now on each flies alone, until it is
    /// known whether it was the one.
    suspects: HashSet<ItemId>,
    /// Who waits to hear how the others fared.
    waiting: Vec<(HashSet<u64>, oneshot::Sender<bool>)>,
    closed: bool,
}

/// The rest are forgotten: that costs one more round of finding out.
const MAX_SUSPECTS: usize = 4096;

impl Gate {
    pub(crate) fn new(sink: &'static str, at_once: usize, limit: Duration) -> Self {
        let all = u32::try_from(at_once.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let health = watch::Sender::new(Health::Down("the sink was not asked yet".into()));
        let permits = Semaphore::new(all as usize);
        let (air, meters) = (Mutex::default(), OnceLock::new());
        Self { sink, limit, permits, all, air, health, meters }
    }

    pub(crate) fn meters(&self) -> &Meters {
        self.meters.get_or_init(|| Meters {
            in_flight: metrics::gauge!(meters::RELAY_IN_FLIGHT, "sink" => self.sink),
            delivered: self.sent("delivered"),
            send: metrics::histogram!(meters::RELAY_SEND, "sink" => self.sink),
            lag: metrics::histogram!(meters::RELAY_LAG, "sink" => self.sink),
        })
    }

    fn sent(&self, result: &'static str) -> Counter {
        metrics::counter!(meters::RELAY_SENT, "sink" => self.sink, "result" => result)
    }

    /// Sends one row, when its turn has come and `ours` still holds.
    pub(crate) async fn pass(
        &self,
        id: ItemId,
        ours: impl Fn() -> bool,
        send: impl Future<Output = Result<(), Failure>>,
    ) -> Verdict {
        let suspect = self.air().suspects.contains(&id);
        let wanted = if suspect { self.all } else { 1 };
        // The semaphore is never closed.
        let _permits = self.permits.acquire_many(wanted).await;
        if let Some(reason) = self.why_not() {
            return Verdict::HandBack(reason);
        }
        if !ours() {
            return Verdict::HandBack("the lease ran out before it was sent".into());
        }
        let flight = Flight::start(self);
        let begun = tokio::time::Instant::now();
        // A sink that panics must not take a batch with it.
        let send = AssertUnwindSafe(send).catch_unwind();
        let result = match tokio::time::timeout(self.limit, send).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Failure::refused("the sink panicked")),
            Err(_) => Err(Failure::unanswered("the sink gave no answer in time")),
        };
        match &result {
            Ok(()) => self.meters().delivered.increment(1),
            Err(failure) => self.sent(failure.label()).increment(1),
        }
        self.meters().send.record(begun.elapsed());
        self.judge(flight, id, result).await
    }

    async fn judge(&self, flight: Flight<'_>, id: ItemId, result: Result<(), Failure>) -> Verdict {
        match result {
            Ok(()) => {
                flight.answered(id);
                Verdict::Delivered
            }
            Err(Failure::Refused { reason, again }) => {
                flight.answered(id);
                Verdict::Failed { reason, again }
            }
            Err(Failure::Unreachable { reason }) => {
                let _ = flight.silent();
                self.down(&reason);
                Verdict::HandBack(reason)
            }
            Err(Failure::Cut { reason }) => {
                let alone = flight.silent().is_some_and(|others| others.is_empty());
                self.suspect(id);
                self.silence(alone, reason)
            }
            Err(Failure::Unanswered { reason }) => {
                let own = match flight.silent() {
                    None => false,
                    Some(others) if others.is_empty() => true,
                    Some(others) => self.others_are_answered(others).await,
                };
                self.silence(own, reason)
            }
        }
    }

    /// Silence about one row is that row's; about several, or twice in a row, the sink's too.
    fn silence(&self, own: bool, reason: Reason) -> Verdict {
        if !own {
            self.down(&reason);
            return Verdict::HandBack(reason);
        }
        if self.air().in_a_row > 1 {
            self.down(&reason);
        }
        Verdict::Failed { reason, again: Again::Later }
    }

    /// Waits until one of these flights gets an answer, or none of them does.
    async fn others_are_answered(&self, others: HashSet<u64>) -> bool {
        let (tell, told) = oneshot::channel();
        {
            let mut air = self.air();
            let others: HashSet<_> = others.intersection(&air.in_flight).copied().collect();
            if others.is_empty() {
                return false;
            }
            air.waiting.push((others, tell));
        }
        told.await.unwrap_or(false)
    }

    fn suspect(&self, id: ItemId) {
        let mut air = self.air();
        if air.suspects.len() >= MAX_SUSPECTS {
            air.suspects.clear();
        }
        air.suspects.insert(id);
    }

    fn down(&self, reason: &Reason) {
        let now = Health::Down(reason.clone());
        if self.health.send_replace(now.clone()) != now {
            metrics::gauge!(meters::RELAY_SINK_UP, "sink" => self.sink).set(0.0);
            tracing::warn!(sink = self.sink, "the sink is away: {reason}");
        }
    }

    /// The sink is there: rows may pass.
    pub(crate) fn up(&self) {
        if self.health.send_replace(Health::Up) != Health::Up {
            metrics::gauge!(meters::RELAY_SINK_UP, "sink" => self.sink).set(1.0);
            tracing::info!(sink = self.sink, "the sink is there");
        }
    }

    /// A look at the sink found it away.
    pub(crate) fn still_away(&self, reason: &Reason) {
        self.down(reason);
        let mut air = self.air();
        air.in_a_row = air.in_a_row.saturating_add(1);
    }

    /// How many flights in a row ended without an answer.
    pub(crate) fn silent_in_a_row(&self) -> u32 {
        self.air().in_a_row
    }

    pub(crate) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// From now on nothing new is sent; what is in the air lands.
    pub(crate) fn close(&self) {
        self.air().closed = true;
    }

    fn why_not(&self) -> Option<Reason> {
        if self.air().closed {
            return Some("the relay stopped".into());
        }
        match &*self.health.borrow() {
            Health::Up => None,
            Health::Down(reason) => Some(reason.clone()),
        }
    }

    fn air(&self) -> MutexGuard<'_, Air> {
        self.air.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Air {
    /// Ends a flight, and tells those who wait for it.
    fn land(&mut self, number: u64, answered: bool) {
        self.in_flight.remove(&number);
        let mut i = 0;
        while i < self.waiting.len() {
            let others = &mut self.waiting[i].0;
            if others.remove(&number) && (answered || others.is_empty()) {
                let _ = self.waiting.swap_remove(i).1.send(answered);
            } else {
                i += 1;
            }
        }
    }
}

/// One row in the air.
struct Flight<'a> {
    gate: &'a Gate,
    number: u64,
    silences: u64,
}

impl<'a> Flight<'a> {
    fn start(gate: &'a Gate) -> Self {
        let mut air = gate.air();
        air.last += 1;
        let number = air.last;
        air.in_flight.insert(number);
        gate.meters().in_flight.increment(1.0);
        Self { gate, number, silences: air.silences }
    }

    fn answered(self, id: ItemId) {
        let mut air = self.gate.air();
        air.in_a_row = 0;
        air.suspects.remove(&id);
        air.land(self.number, true);
    }

    /// Who else was in the air; `None` where the silence had begun with another one.
    fn silent(self) -> Option<HashSet<u64>> {
        let mut air = self.gate.air();
        let first = air.silences == self.silences;
        air.silences += 1;
        if first {
            air.in_a_row = air.in_a_row.saturating_add(1);
        }
        air.land(self.number, false);
        first.then(|| air.in_flight.clone())
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.gate.meters().in_flight.decrement(1.0);
        // Does nothing where it has landed; a send that was given up is silence to the others.
        self.gate.air().land(self.number, false);
    }
}
