//! The only way to the sink: limits the sends in flight, and asks the circuit breaker whose fault a failed
//! send was.

use std::borrow::Cow;
use std::collections::HashSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::activity::{self, Activity, SendActivity};
use hapax_core::metric_names;
use hapax_core::queue::{ItemId, QueueItem};
use hapax_core::worker::{
    Backoff, BegunSend, Blame, CircuitBreaker, DoubtfulFailure, TargetHealth,
};
use metrics::{Counter, Gauge, Histogram};
use tokio::sync::Semaphore;

use crate::sinks::BUS;
use crate::{DeliveryError, RetryHint};

/// The longest that a sink may make a row wait.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

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
    HandBack {
        reason: Reason,
        after: Duration,
    },
}

pub(crate) struct SinkGate {
    sink: &'static str,
    send_timeout: Duration,
    /// A send takes one permit; a row that must be sent alone takes all of them.
    permits: Semaphore,
    max_in_flight: u32,
    sends: Mutex<InFlightSends>,
    breaker: CircuitBreaker,
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

/// The sends that have begun and not ended.
#[derive(Default)]
struct InFlightSends {
    count: usize,
    /// How many sends lost their connection since the start.
    disconnected: u64,
    /// Rows that were in flight when the connection was lost. One of them may have caused it, so each
    /// is sent alone from now on, until it gets an answer.
    send_alone: HashSet<ItemId>,
    closed: bool,
}

/// Beyond this many rows the set is emptied: that costs one more lost connection to find the row.
const MAX_SEND_ALONE: usize = 4096;

impl SinkGate {
    pub(crate) fn new(
        sink: &'static str,
        max_in_flight: usize,
        send_timeout: Duration,
        backoff: Backoff,
    ) -> Self {
        let max = max_in_flight.clamp(1, Semaphore::MAX_PERMITS);
        let max_in_flight = u32::try_from(max).unwrap_or(u32::MAX);
        Self {
            sink,
            send_timeout,
            permits: Semaphore::new(max_in_flight as usize),
            max_in_flight,
            sends: Mutex::default(),
            breaker: CircuitBreaker::new(TargetHealth::NOT_CHECKED, backoff, move |health| {
                report_health(sink, health)
            }),
            metrics: OnceLock::new(),
        }
    }

    /// Makes the series of the sink's health and of each result exist before the first row, for alerts.
    pub(crate) fn start_metrics(&self) {
        set_up_gauge(self.sink, &self.breaker.health().borrow());
        for result in ["delivered", "refused", "rejected", "unanswered", "cut", "unreachable"] {
            self.sent_counter(result).increment(0);
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

    /// The circuit between the relay and its sink.
    pub(crate) fn breaker(&self) -> &CircuitBreaker {
        &self.breaker
    }

    /// Sends one row as soon as there is a permit, if its lease still holds by then.
    pub(crate) async fn send(
        &self,
        item: &QueueItem,
        is_leased: impl Fn() -> bool,
        send: impl Future<Output = Result<(), DeliveryError>>,
    ) -> SendOutcome {
        let id = item.id;
        // A lease that is asked for again may bring many rows while only one should try.
        let alone = self.breaker.is_half_open() || self.sends().send_alone.contains(&id);
        // The semaphore is never closed.
        let _permits = self.permits.acquire_many(if alone { self.max_in_flight } else { 1 }).await;
        if let Some(reason) = self.reason_not_to_send() {
            return SendOutcome::not_sent(reason);
        }
        if !is_leased() {
            return SendOutcome::not_sent("the lease ran out before it was sent".into());
        }
        let in_flight = InFlightSend::start(self, id);
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
        let took = begun.elapsed();
        self.metrics().send.record(took);
        let (tenant, result_activity) = (&item.tenant, self.activity_of(&result));
        activity::record(Activity::Sent { tenant, result: result_activity, took });
        self.judge(in_flight, id, result)
    }

    fn activity_of(&self, result: &Result<(), DeliveryError>) -> SendActivity {
        match result {
            // The bus records what it publishes and refuses.
            Ok(()) | Err(DeliveryError::Refused { .. }) if self.sink == BUS => {
                SendActivity::Recorded
            }
            Ok(()) => SendActivity::Taken,
            Err(DeliveryError::Refused { .. } | DeliveryError::Rejected { .. }) => {
                SendActivity::Refused
            }
            Err(_) => SendActivity::Failed,
        }
    }

    fn judge(
        &self,
        in_flight: InFlightSend<'_>,
        id: ItemId,
        result: Result<(), DeliveryError>,
    ) -> SendOutcome {
        let send = in_flight.send;
        let was_alone = in_flight.finish(&result);
        match result {
            Ok(()) => {
                self.sends().send_alone.remove(&id);
                self.breaker.taken(&send);
                SendOutcome::Delivered
            }
            Err(DeliveryError::Refused { reason, retry }) => {
                self.sends().send_alone.remove(&id);
                self.breaker.answered(&send);
                SendOutcome::Failed { reason, retry }
            }
            Err(DeliveryError::Unreachable { reason }) => {
                let after = self.breaker.away(&send, reason.clone());
                SendOutcome::HandBack { reason, after }
            }
            Err(DeliveryError::Rejected { reason, retry }) => {
                self.judge_doubtful(&send, true, reason, retry)
            }
            Err(DeliveryError::Unanswered { reason }) => {
                self.judge_doubtful(&send, true, reason, RetryHint::Later)
            }
            Err(DeliveryError::Disconnected { reason }) => {
                self.send_alone_from_now_on(id);
                self.judge_doubtful(&send, was_alone, reason, RetryHint::Later)
            }
        }
    }

    fn judge_doubtful(
        &self,
        send: &BegunSend,
        may_be_item: bool,
        reason: Reason,
        retry: RetryHint,
    ) -> SendOutcome {
        let retry_after = match retry {
            RetryHint::After(asked) => asked.min(MAX_RETRY_AFTER),
            RetryHint::Later | RetryHint::Never => Duration::ZERO,
        };
        let failure = DoubtfulFailure { reason: reason.clone(), may_be_item, retry_after };
        match self.breaker.failed(send, failure) {
            Blame::Item => SendOutcome::Failed { reason, retry },
            Blame::Target(after) => SendOutcome::HandBack { reason, after },
        }
    }

    fn send_alone_from_now_on(&self, id: ItemId) {
        let mut sends = self.sends();
        if sends.send_alone.len() >= MAX_SEND_ALONE {
            sends.send_alone.clear();
        }
        sends.send_alone.insert(id);
    }

    /// Refuses new sends from now on; those in flight may end.
    pub(crate) fn close(&self) {
        self.sends().closed = true;
    }

    fn reason_not_to_send(&self) -> Option<Reason> {
        if self.sends().closed {
            return Some("the relay stopped".into());
        }
        self.breaker.reason_not_to_send()
    }

    fn sends(&self) -> MutexGuard<'_, InFlightSends> {
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SendOutcome {
    fn not_sent(reason: Reason) -> Self {
        Self::HandBack { reason, after: Duration::ZERO }
    }
}

/// One send that has begun and not ended.
struct InFlightSend<'a> {
    gate: &'a SinkGate,
    send: BegunSend,
    /// [`InFlightSends::disconnected`] at the start of this send.
    disconnected_at_start: u64,
}

impl<'a> InFlightSend<'a> {
    fn start(gate: &'a SinkGate, id: ItemId) -> Self {
        let mut sends = gate.sends();
        sends.count += 1;
        gate.metrics().in_flight.increment(1.0);
        let disconnected_at_start = sends.disconnected;
        Self { gate, send: gate.breaker.begin(id), disconnected_at_start }
    }

    /// Whether the send was alone on its connection when that was lost: no other was in flight, and none
    /// had lost its connection since this one began.
    fn finish(self, result: &Result<(), DeliveryError>) -> bool {
        let mut sends = self.gate.sends();
        let was_alone = sends.count == 1 && sends.disconnected == self.disconnected_at_start;
        if matches!(result, Err(DeliveryError::Disconnected { .. })) {
            sends.disconnected += 1;
        }
        drop(sends);
        was_alone
    }
}

impl Drop for InFlightSend<'_> {
    fn drop(&mut self) {
        self.gate.metrics().in_flight.decrement(1.0);
        self.gate.sends().count -= 1;
    }
}

fn report_health(sink: &'static str, health: &TargetHealth) {
    set_up_gauge(sink, health);
    match health {
        TargetHealth::Up => tracing::info!(sink, "the sink is up"),
        TargetHealth::Down(reason) => tracing::warn!(sink, "the sink is down: {reason}"),
    }
}

fn set_up_gauge(sink: &'static str, health: &TargetHealth) {
    let is_up = *health == TargetHealth::Up;
    metrics::gauge!(metric_names::RELAY_SINK_UP, "sink" => sink).set(f64::from(u8::from(is_up)));
}
