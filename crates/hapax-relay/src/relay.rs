use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hapax_core::queue::{ItemId, ItemOutcome, Resolved};
use hapax_core::worker::{LeasedBatch, OutcomeWriter, QueueLeaser, TargetHealth, WriteReport};
use hapax_core::{Queue, Records, metric_names};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::batch_size::BatchSize;
use crate::ordered_send::{group_by_key, send_in_order};
use crate::sink_gate::SinkGate;
use crate::{DeliveryError, RelayConfig, Sink};

/// Drains a queue into a sink.
///
/// Rows of one key are delivered in order, different keys at once; any number of relays may share a
/// queue. A row that fails is retried later and holds up only its own key; after its last attempt it
/// is a dead letter. While the sink is down, or takes nothing, the relay waits and lets one row try from
/// time to time, and no row's attempts are used up.
/// Delivery is at least once, always with the same id: an inbox on the receiving side makes each
/// effect happen once.
pub struct Relay {
    queue: Arc<dyn Queue>,
    pauses: Option<Arc<dyn Records>>,
    context: Arc<RelayContext>,
}

/// The parts of a relay that all batches share.
pub(crate) struct RelayContext {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) config: RelayConfig,
    pub(crate) gate: SinkGate,
}

impl Relay {
    /// A relay with the default [`RelayConfig`].
    pub fn new(queue: Arc<dyn Queue>, sink: Arc<dyn Sink>) -> Self {
        Self::with(queue, sink, RelayConfig::default())
    }

    /// A relay with this configuration.
    pub fn with(queue: Arc<dyn Queue>, sink: Arc<dyn Sink>, config: RelayConfig) -> Self {
        let RelayConfig { send_timeout, backoff, .. } = config;
        let gate = SinkGate::new(sink.name(), sink.max_in_flight(), send_timeout, backoff);
        let context = Arc::new(RelayContext { sink, config, gate });
        Self { queue, pauses: None, context }
    }

    /// Leases no rows while an operator has [paused](hapax_core::worker::pause) the queue in this store; rows in flight
    /// are sent. Costs one read of a record each second.
    #[must_use]
    pub fn pausable(mut self, store: Arc<dyn Records>) -> Self {
        self.pauses = Some(store);
        self
    }

    /// The health of the sink, to be read and waited for.
    pub fn health(&self) -> watch::Receiver<TargetHealth> {
        self.context.gate.breaker().health()
    }

    /// Works until `stop`; then waits for the messages in flight and hands the other rows back.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (context, mut batches) = (self.context, JoinSet::new());
        context.gate.start_metrics();
        let supply = Supply::new(self.queue, self.pauses, &context.config);
        context.work(supply, &mut batches, pin!(stop)).await;
        context.gate.close();
        let finished = async { while batches.join_next().await.is_some() {} };
        if timeout(context.config.shutdown_timeout, finished).await.is_err() {
            tracing::warn!("some rows are still in flight; their leases run out by themselves");
        }
    }
}

impl RelayContext {
    async fn work(
        self: &Arc<Self>,
        mut supply: Supply,
        batches: &mut JoinSet<Duration>,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) {
        // Registered before the first lease, so that no row between the two is missed.
        let mut arrivals = supply.leaser.arrivals();
        let breaker = self.gate.breaker();
        let mut health = breaker.health();
        loop {
            health.mark_unchanged();
            if breaker.reason_not_to_send().is_some() {
                let recovered = async {
                    // Rows that were not sent yet are handed back at once.
                    while batches.join_next().await.is_some() {}
                    self.wait_until_check_passes().await;
                };
                tokio::select! {
                    biased;
                    () = &mut stop => return,
                    () = recovered => supply.may_have_rows = true,
                }
            }
            // After a failure of the sink: one row at a time, until there is an answer.
            let one_at_a_time = breaker.is_doubted();
            let max_batches = if one_at_a_time { 1 } else { self.config.max_batches };
            // Not cancelled by `stop`: rows leased by a dropped call would wait for their lease to end.
            let leased = supply.may_have_rows
                && batches.len() < max_batches
                && self.start_batch(&mut supply, batches, one_at_a_time).await;
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = ready(()), if leased => {}
                Some(done) = batches.join_next() => {
                    supply.batch_size.record_duration(done.unwrap_or_default(), self.config.lease);
                    supply.may_have_rows = true;
                }
                () = arrivals.changed(self.config.poll_interval), if !supply.may_have_rows => {
                    supply.may_have_rows = true;
                }
                _ = health.changed() => {}
            }
        }
    }

    /// Leases rows and begins to send them; whether there were any.
    async fn start_batch(
        self: &Arc<Self>,
        supply: &mut Supply,
        batches: &mut JoinSet<Duration>,
        one_at_a_time: bool,
    ) -> bool {
        let max_rows = if one_at_a_time { 1 } else { supply.batch_size.rows() };
        let Ok(batch) = supply.leaser.lease(max_rows).await else {
            supply.may_have_rows = false;
            return false;
        };
        if !one_at_a_time {
            supply.batch_size.record_lease(batch.asked_for, &batch.rows);
        }
        supply.may_have_rows = batch.is_full();
        if batch.rows.is_empty() {
            // The outcome of the row that failed is written within the store's timeout.
            self.gate.breaker().found_nothing(self.config.store_timeout);
            return false;
        }
        batches.spawn(self.clone().send_batch(batch));
        true
    }

    /// Sends a batch, the keys side by side; how long it took.
    async fn send_batch(self: Arc<Self>, batch: LeasedBatch) -> Duration {
        let LeasedBatch { rows, lease, .. } = batch;
        let (outcomes, writer) = OutcomeWriter::new(&lease, rows.len());
        let sends = group_by_key(rows).into_iter();
        let sends: FuturesUnordered<_> = sends
            .map(|rows| send_in_order(&self, lease.deadline(), rows, outcomes.clone()))
            .collect();
        drop(outcomes);
        let sends = sends.for_each(|()| ready(()));
        writer.on_report(count_outcomes).run_while_renewing(sends).await;
        lease.elapsed()
    }

    async fn wait_until_check_passes(&self) {
        let breaker = self.gate.breaker();
        loop {
            sleep(breaker.pause()).await;
            let checked = timeout(self.config.send_timeout, self.sink.check()).await;
            let unanswered = || Err(DeliveryError::unreachable("the sink gave no answer"));
            match checked.unwrap_or_else(|_| unanswered()) {
                Ok(()) => return breaker.check_passed(),
                Err(error) => breaker.check_failed(error.reason().clone()),
            }
        }
    }
}

/// Where the next batch comes from.
struct Supply {
    leaser: QueueLeaser,
    batch_size: BatchSize,
    /// Whether a lease now may find rows.
    may_have_rows: bool,
}

impl Supply {
    fn new(queue: Arc<dyn Queue>, pauses: Option<Arc<dyn Records>>, config: &RelayConfig) -> Self {
        let mut leaser = QueueLeaser::new(queue, config.queue.clone(), config.lease);
        if let Some(store) = pauses {
            leaser = leaser.pausable(store);
        }
        Self {
            leaser: leaser.store_timeout(config.store_timeout),
            batch_size: BatchSize::new(config.max_batch),
            may_have_rows: true,
        }
    }
}

fn count_outcomes(outcomes: &[(ItemId, ItemOutcome)], report: WriteReport<'_>) {
    let labels = outcomes.iter().enumerate().map(|(i, (_, outcome))| {
        let outcome = match outcome {
            ItemOutcome::Ack { .. } => "acked",
            ItemOutcome::Retry { counts: true, .. } => "retried",
            ItemOutcome::Retry { counts: false, .. } => "handed_back",
            ItemOutcome::Bury { .. } => "buried",
        };
        let result = match report {
            WriteReport::Written(resolved) if resolved.get(i) == Some(&Resolved::Lost) => "lost",
            WriteReport::Written(_) => "done",
            WriteReport::GivenUp => "error",
        };
        (outcome, result)
    });
    let labels: Vec<_> = labels.collect();
    // Most neighbours have the same labels: one lookup for each run of them.
    for same in labels.chunk_by(PartialEq::eq) {
        let (outcome, result) = same[0];
        metrics::counter!(metric_names::RELAY_RESOLVED, "outcome" => outcome, "result" => result)
            .increment(same.len() as u64);
    }
}
