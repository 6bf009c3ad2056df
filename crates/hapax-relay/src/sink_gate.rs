//! The only way to the sink: limits the sends in flight, decides whose fault a failed send was, and
//! knows whether the sink is up.

use std::borrow::Cow;
use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::metric_names;
use hapax_core::queue::ItemId;
use metrics::{Counter, Gauge, Histogram};
use tokio::sync::{Semaphore, oneshot, watch};

use crate::{DeliveryError, RetryHint};

type Reason = Cow<'static, str>;

/// The outcome of sending a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    Delivered,
    /// The row failed; counts as an attempt.
    Failed {
        reason: Reason,
        retry: RetryHint,
    },
    /// The row was not sent, or the sink failed; does not count as an attempt.
    HandBack(Reason),
}

/// Whether the sink is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkHealth {
    /// The sink answers, as far as is known.
    Up,
    /// The sink does not answer, and why.
    Down(Cow<'static, str>),
}

pub(crate) struct SinkGate {
    sink: &'static str,
    send_timeout: Duration,
    /// A send takes one permit; a row that must be sent alone takes all of them.
    permits: Semaphore,
    max_in_flight: u32,
    sends: Mutex<InFlightSends>,
    health: watch::Sender<SinkHealth>,
    metrics: OnceLock<SinkMetrics>,
}

/// The metrics that every row changes, looked up once: a lookup per row would assemble and hash the
/// labels each time.
pub(crate) struct SinkMetrics {
    in_flight: Gauge,
    delivered: Counter,
    send: Histogram,
    pub(crate) lag: Histogram,
}

/// The sends that have begun and not ended, by number.
#[derive(Default)]
struct InFlightSends {
    last_number: u64,
    numbers: HashSet<u64>,
    /// How many sends ended without an answer since the start.
    unanswered: u64,
    /// How often the sink fell silent since its last answer: a lost connection that ends many sends
    /// is one silence. Above zero the relay sends one row at a time.
    silences_in_a_row: u32,
    /// Rows that were in flight when the connection was lost. One of them may have caused it, so each
    /// is sent alone from now on, until it gets an answer.
    send_alone: HashSet<ItemId>,
    /// Unanswered sends that wait to hear whether one of the others was answered.
    waiting: Vec<(HashSet<u64>, oneshot::Sender<bool>)>,
    closed: bool,
}

/// Beyond this many rows the set is emptied: that costs one more lost connection to find the row.
const MAX_SEND_ALONE: usize = 4096;

impl SinkGate {
    pub(crate) fn new(sink: &'static str, max_in_flight: usize, send_timeout: Duration) -> Self {
        let max = max_in_flight.clamp(1, Semaphore::MAX_PERMITS);
        let max_in_flight = u32::try_from(max).unwrap_or(u32::MAX);
        Self {
            sink,
            send_timeout,
            permits: Semaphore::new(max_in_flight as usize),
            max_in_flight,
            sends: Mutex::default(),
            health: watch::Sender::new(SinkHealth::Down("the sink was not checked yet".into())),
            metrics: OnceLock::new(),
        }
    }

    pub(crate) fn metrics(&self) -> &SinkMetrics {
        self.metrics.get_or_init(|| SinkMetrics {
            in_flight: metrics::gauge!(metric_names::RELAY_IN_FLIGHT, "sink" => self.sink),
            delivered: self.sent_counter("delivered"),
            send: metrics::histogram!(metric_names::RELAY_SEND, "sink" => self.sink),
            lag: metrics::histogram!(metric_names::RELAY_LAG, "sink" => self.sink),
        })
    }

    fn sent_counter(&self, result: &'static str) -> Counter {
        metrics::counter!(metric_names::RELAY_SENT, "sink" => self.sink, "result" => result)
    }

    /// Sends one row as soon as there is a permit, if its lease still holds by then.
    pub(crate) async fn send(
        &self,
        id: ItemId,
        is_leased: impl Fn() -> bool,
        send: impl Future<Output = Result<(), DeliveryError>>,
    ) -> SendOutcome {
        let alone = self.sends().send_alone.contains(&id);
        // The semaphore is never closed.
        let _permits = self.permits.acquire_many(if alone { self.max_in_flight } else { 1 }).await;
        if let Some(reason) = self.reason_not_to_send() {
            return SendOutcome::HandBack(reason);
        }
        if !is_leased() {
            return SendOutcome::HandBack("the lease ran out before it was sent".into());
        }
        let in_flight = InFlightSend::start(self);
        let begun = tokio::time::Instant::now();
        // A sink that panics must not end the whole batch.
        let send = AssertUnwindSafe(send).catch_unwind();
        let result = match tokio::time::timeout(self.send_timeout, send).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(DeliveryError::refused("the sink panicked")),
            Err(_) => Err(DeliveryError::unanswered("the sink gave no answer in time")),
        };
        match &result {
            Ok(()) => self.metrics().delivered.increment(1),
            Err(error) => self.sent_counter(error.label()).increment(1),
        }
        self.metrics().send.record(begun.elapsed());
        self.judge(in_flight, id, result).await
    }

    async fn judge(
        &self,
        in_flight: InFlightSend<'_>,
        id: ItemId,
        result: Result<(), DeliveryError>,
    ) -> SendOutcome {
        match result {
            Ok(()) => {
                in_flight.finish_answered(id);
                SendOutcome::Delivered
            }
            Err(DeliveryError::Refused { reason, retry }) => {
                in_flight.finish_answered(id);
                SendOutcome::Failed { reason, retry }
            }
            Err(DeliveryError::Unreachable { reason }) => {
                let _ = in_flight.finish_unanswered();
                self.set_down(&reason);
                SendOutcome::HandBack(reason)
            }
            Err(DeliveryError::Disconnected { reason }) => {
                let others = in_flight.finish_unanswered();
                let was_alone = others.is_some_and(|others| others.is_empty());
                self.send_alone_from_now_on(id);
                self.judge_silence(was_alone, reason)
            }
            Err(DeliveryError::Unanswered { reason }) => {
                let is_row_specific = match in_flight.finish_unanswered() {
                    None => false,
                    Some(others) if others.is_empty() => true,
                    Some(others) => self.is_any_answered(others).await,
                };
                self.judge_silence(is_row_specific, reason)
            }
        }
    }

    /// Silence about a single row is blamed on that row; silence about several rows, or twice in a
    /// row, on the sink.
    fn judge_silence(&self, is_row_specific: bool, reason: Reason) -> SendOutcome {
        if !is_row_specific {
            self.set_down(&reason);
            return SendOutcome::HandBack(reason);
        }
        if self.sends().silences_in_a_row > 1 {
            self.set_down(&reason);
        }
        SendOutcome::Failed { reason, retry: RetryHint::Later }
    }

    /// Waits until one of these sends is answered (true), or all of them ended without (false).
    async fn is_any_answered(&self, others: HashSet<u64>) -> bool {
        let (sender, answered) = oneshot::channel();
        {
            let mut sends = self.sends();
            let others: HashSet<_> = others.intersection(&sends.numbers).copied().collect();
            if others.is_empty() {
                return false;
            }
            sends.waiting.push((others, sender));
        }
        answered.await.unwrap_or(false)
    }

    fn send_alone_from_now_on(&self, id: ItemId) {
        let mut sends = self.sends();
        if sends.send_alone.len() >= MAX_SEND_ALONE {
            sends.send_alone.clear();
        }
        sends.send_alone.insert(id);
    }

    fn set_down(&self, reason: &Reason) {
        let now = SinkHealth::Down(reason.clone());
        if self.health.send_replace(now.clone()) != now {
            metrics::gauge!(metric_names::RELAY_SINK_UP, "sink" => self.sink).set(0.0);
            tracing::warn!(sink = self.sink, "the sink is down: {reason}");
        }
    }

    /// Opens the gate: a check found the sink up.
    pub(crate) fn set_up(&self) {
        if self.health.send_replace(SinkHealth::Up) != SinkHealth::Up {
            metrics::gauge!(metric_names::RELAY_SINK_UP, "sink" => self.sink).set(1.0);
            tracing::info!(sink = self.sink, "the sink is up");
        }
    }

    /// Records that a check found the sink down.
    pub(crate) fn record_failed_check(&self, reason: &Reason) {
        self.set_down(reason);
        let mut sends = self.sends();
        sends.silences_in_a_row = sends.silences_in_a_row.saturating_add(1);
    }

    pub(crate) fn silences_in_a_row(&self) -> u32 {
        self.sends().silences_in_a_row
    }

    pub(crate) fn health(&self) -> watch::Receiver<SinkHealth> {
        self.health.subscribe()
    }

    /// Refuses new sends from now on; those in flight may end.
    pub(crate) fn close(&self) {
        self.sends().closed = true;
    }

    fn reason_not_to_send(&self) -> Option<Reason> {
        if self.sends().closed {
            return Some("the relay stopped".into());
        }
        match &*self.health.borrow() {
            SinkHealth::Up => None,
            SinkHealth::Down(reason) => Some(reason.clone()),
        }
    }

    fn sends(&self) -> MutexGuard<'_, InFlightSends> {
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InFlightSends {
    /// Removes a send, and tells those that wait for it.
    fn finish(&mut self, number: u64, answered: bool) {
        self.numbers.remove(&number);
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

/// One send that has begun and not ended.
struct InFlightSend<'a> {
    gate: &'a SinkGate,
    number: u64,
    /// [`InFlightSends::unanswered`] at the start of this send.
    unanswered_at_start: u64,
}

impl<'a> InFlightSend<'a> {
    fn start(gate: &'a SinkGate) -> Self {
        let mut sends = gate.sends();
        sends.last_number += 1;
        let number = sends.last_number;
        sends.numbers.insert(number);
        gate.metrics().in_flight.increment(1.0);
        Self { gate, number, unanswered_at_start: sends.unanswered }
    }

    fn finish_answered(self, id: ItemId) {
        let mut sends = self.gate.sends();
        sends.silences_in_a_row = 0;
        sends.send_alone.remove(&id);
        sends.finish(self.number, true);
    }

    /// The other sends in flight; `None` where another send had ended unanswered since this one began,
    /// so that both belong to the same silence.
    fn finish_unanswered(self) -> Option<HashSet<u64>> {
        let mut sends = self.gate.sends();
        let is_first = sends.unanswered == self.unanswered_at_start;
        sends.unanswered += 1;
        if is_first {
            sends.silences_in_a_row = sends.silences_in_a_row.saturating_add(1);
        }
        sends.finish(self.number, false);
        is_first.then(|| sends.numbers.clone())
    }
}

impl Drop for InFlightSend<'_> {
    fn drop(&mut self) {
        self.gate.metrics().in_flight.decrement(1.0);
        // No effect after `finish_*`. A send that was dropped half-way counts as unanswered.
        self.gate.sends().finish(self.number, false);
    }
}
