use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use hapax_core::queue::{LeaseRequest, LeasedItem};
use hapax_core::{Queue, Token, with_timeout};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::batch_size::BatchSize;
use crate::held::Held;
use crate::outcome_writer::OutcomeWriter;
use crate::sink_gate::{SinkGate, SinkHealth};
use crate::{DeliveryError, RelayConfig, Sink, ordered_send};

/// Drains a queue into a sink.
///
/// Rows of one key are delivered in order, different keys at once; any number of relays may share a
/// queue. A row that fails is tried again later and holds up nobody but its own key; after its last
/// attempt it is a dead letter. While the sink is away the relay waits, and nobody's attempts are used
/// up. Delivery is at least once, always with the same id: an inbox on the other side makes each
/// effect happen once.
pub struct Relay(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) config: RelayConfig,
    pub(crate) gate: SinkGate,
}

impl Relay {
    /// A relay with the usual [`RelayConfig`].
    pub fn new(queue: Arc<dyn Queue>, sink: Arc<dyn Sink>) -> Self {
        Self::with(queue, sink, RelayConfig::default())
    }

    /// A relay.
    pub fn with(queue: Arc<dyn Queue>, sink: Arc<dyn Sink>, config: RelayConfig) -> Self {
        let gate = SinkGate::new(sink.name(), sink.max_in_flight(), config.send_timeout);
        Self(Arc::new(Inner { queue, sink, config, gate }))
    }

    /// Whether the sink is there, to be read and waited for.
    pub fn health(&self) -> watch::Receiver<SinkHealth> {
        self.0.gate.health()
    }

    /// Works until `stop`; then lands what is in the air, and hands back the rest.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let relay = self.0;
        let mut batches = JoinSet::new();
        relay.work(&mut batches, pin!(stop)).await;
        relay.gate.close();
        let landed = async { while batches.join_next().await.is_some() {} };
        if timeout(relay.config.shutdown_timeout, landed).await.is_err() {
            tracing::warn!("some rows are still on their way; their leases run out by themselves");
        }
    }
}

impl Inner {
    async fn work(
        self: &Arc<Self>,
        batches: &mut JoinSet<Duration>,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) {
        // Registered before the first look, so that nothing in between is missed.
        let mut arrivals = self.queue.arrivals(&self.config.queue);
        let mut health = self.gate.health();
        let mut supply = Supply::new(self.config.max_batch);
        loop {
            if *health.borrow_and_update() != SinkHealth::Up {
                let recovered = async {
                    // What is not in the air yet comes back at once.
                    while batches.join_next().await.is_some() {}
                    self.recover().await;
                };
                tokio::select! {
                    biased;
                    () = &mut stop => return,
                    () = recovered => supply.hungry = true,
                }
            }
            // After a silence one row at a time, until there is an answer.
            let careful = self.gate.silences_in_a_row() > 0;
            let room = if careful { 1 } else { self.config.max_batches };
            // Not given up in the middle: what is handed out then would wait for its lease to end.
            let fed = supply.hungry
                && batches.len() < room
                && self.feed(&mut supply, batches, careful).await;
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = ready(()), if fed => {}
                Some(done) = batches.join_next() => {
                    supply.pace.took(done.unwrap_or_default(), self.config.lease);
                    supply.hungry = true;
                }
                // Who is hungry already waits for room.
                () = arrivals.changed(self.config.poll_interval), if !supply.hungry => supply.hungry = true,
                _ = health.changed() => {}
            }
        }
    }

    /// Leases rows and begins to send them; whether there were any.
    async fn feed(
        self: &Arc<Self>,
        supply: &mut Supply,
        batches: &mut JoinSet<Duration>,
        careful: bool,
    ) -> bool {
        let RelayConfig { queue, lease, store_timeout, .. } = &self.config;
        let rows = if careful { 1 } else { supply.pace.rows() };
        // An answer that was lost is asked for again, with the same token.
        let take = supply.unanswered.take().unwrap_or_else(|| LeaseRequest::new(rows, *lease));
        let asked_at = Instant::now();
        let leased = match with_timeout(*store_timeout, self.queue.lease(queue, &take)).await {
            Ok(leased) => leased,
            Err(error) => {
                self.store_failed("leasing rows", &error);
                (supply.unanswered, supply.hungry) = (Some(take), false);
                return false;
            }
        };
        if !careful {
            supply.pace.leased(take.max_items, &leased);
        }
        supply.hungry = leased.len() >= take.max_items;
        let any = !leased.is_empty();
        if any {
            batches.spawn(self.clone().batch(leased, take.token, asked_at));
        }
        any
    }

    /// Sends a batch, each key on its own; how long it took.
    async fn batch(
        self: Arc<Self>,
        rows: Vec<LeasedItem>,
        token: Token,
        asked_at: Instant,
    ) -> Duration {
        let lease = self.config.lease;
        let held = Held::new(asked_at, lease);
        let (said, heard) = mpsc::unbounded_channel();
        let writer = OutcomeWriter {
            relay: &self,
            held: &held,
            token: &token,
            open: rows.len() as u64,
            renew_at: asked_at + lease / 3,
        };
        let lanes = ordered_send::group_by_key(rows).into_iter();
        let lanes: FuturesUnordered<_> = lanes
            .map(|rows| ordered_send::send_in_order(&self, &held, rows, said.clone()))
            .collect();
        drop(said);
        tokio::join!(lanes.for_each(|()| ready(())), writer.run(heard));
        asked_at.elapsed()
    }

    /// Waits until the sink is there.
    async fn recover(&self) {
        loop {
            let silent = self.gate.silences_in_a_row();
            if silent > 0 {
                sleep(self.config.backoff.after(silent)).await;
            }
            let answer = timeout(self.config.send_timeout, self.sink.check()).await;
            match answer
                .unwrap_or_else(|_| Err(DeliveryError::unreachable("the sink gave no answer")))
            {
                Ok(()) => return self.gate.set_up(),
                Err(failure) => self.gate.record_failed_check(failure.reason()),
            }
        }
    }
}

/// What is known about the next lease.
struct Supply {
    pace: BatchSize,
    /// There may be something to lease.
    hungry: bool,
    /// A lease whose answer we did not hear.
    unanswered: Option<LeaseRequest>,
}

impl Supply {
    fn new(most: usize) -> Self {
        Self { pace: BatchSize::new(most), hungry: true, unanswered: None }
    }
}
