//! Leases of batches, and until when they hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::QueuePause;
use crate::activity::{self, Activity, QueueOutcomes};
use crate::queue::{ItemId, ItemOutcome, LeaseRequest, LeasedItem, QueueName, Resolved};
use crate::{
    Queue, Records, StoreError, StoreResult, Tenant, Token, Watch, deadline_after, metric_names,
    with_timeout,
};

/// The queue and the times that all leases of a worker share.
struct LeasedQueue {
    store: Arc<dyn Queue>,
    name: QueueName,
    lease: Duration,
    store_timeout: Duration,
}

/// Leases batches of rows from one queue.
///
/// A lease whose answer was lost is asked for again with the same token: the rows that the store has
/// handed out would otherwise wait until their lease runs out.
pub struct QueueLeaser {
    queue: Arc<LeasedQueue>,
    unanswered: Option<LeaseRequest>,
    pause: Option<QueuePause>,
}

/// The answer to one lease call.
pub struct LeasedBatch {
    /// The rows; none where nothing is due.
    pub rows: Vec<LeasedItem>,
    /// The lease of all of them.
    pub lease: Arc<BatchLease>,
    /// How many rows were asked for.
    pub asked_for: usize,
}

impl LeasedBatch {
    /// Whether as many rows came as were asked for, so that more may be due.
    pub fn is_full(&self) -> bool {
        self.rows.len() >= self.asked_for
    }
}

impl QueueLeaser {
    /// Leases from this queue of the store, for so long without renewal.
    pub fn new(store: Arc<dyn Queue>, queue: QueueName, lease: Duration) -> Self {
        let store_timeout = Duration::from_secs(5);
        let queue = LeasedQueue { store, name: queue, lease, store_timeout };
        Self { queue: Arc::new(queue), unanswered: None, pause: None }
    }

    /// Leases nothing while an operator has [paused](super::pause) the queue.
    #[must_use]
    pub fn pausable(mut self, store: Arc<dyn Records>) -> Self {
        self.pause = Some(QueuePause::new(store, &self.queue.name));
        self
    }

    /// The longest that one store call may take; 5 s by default.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        // No lease shares the queue yet.
        if let Some(queue) = Arc::get_mut(&mut self.queue) {
            queue.store_timeout = timeout;
        }
        self
    }

    /// Registers for hints that rows may be due.
    pub fn arrivals(&self) -> Watch {
        self.queue.store.arrivals(&self.queue.name)
    }

    /// Leases up to `max_rows`; after an error the next call repeats this one, with its number of rows.
    pub async fn lease(&mut self, max_rows: usize) -> StoreResult<LeasedBatch> {
        // Rows of an unanswered call may be ours already, so that call is repeated also during a pause.
        if self.unanswered.is_none()
            && let Some(pause) = &mut self.pause
            && pause.is_paused().await
        {
            return Ok(self.batch(Vec::new(), Token::random(), Instant::now(), max_rows));
        }
        let LeasedQueue { store, name, lease, store_timeout } = &*self.queue;
        let take = self.unanswered.take().unwrap_or_else(|| LeaseRequest::new(max_rows, *lease));
        let asked_at = Instant::now();
        match with_timeout(*store_timeout, store.lease(name, &take)).await {
            Ok(rows) => Ok(self.batch(rows, take.token, asked_at, take.max_items)),
            Err(error) => {
                report_store_error("leasing rows", &error);
                self.unanswered = Some(take);
                Err(error)
            }
        }
    }

    fn batch(
        &self,
        rows: Vec<LeasedItem>,
        token: Token,
        asked_at: Instant,
        asked_for: usize,
    ) -> LeasedBatch {
        let deadline = LeaseDeadline::new(deadline_after(asked_at, self.queue.lease));
        let tenants = RowTenants::of(&rows);
        let lease = BatchLease { queue: self.queue.clone(), token, asked_at, deadline, tenants };
        LeasedBatch { rows, lease: Arc::new(lease), asked_for }
    }

    /// Whether the last lease call failed, so that rows may be leased to us that we do not know.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.is_some()
    }
}

/// The lease of one batch.
pub struct BatchLease {
    queue: Arc<LeasedQueue>,
    token: Token,
    asked_at: Instant,
    deadline: LeaseDeadline,
    tenants: RowTenants,
}

/// The tenants of a batch's rows, for the recorded activity.
enum RowTenants {
    NotRecorded,
    Same(Tenant),
    ById(HashMap<ItemId, Tenant>),
}

impl RowTenants {
    fn of(rows: &[LeasedItem]) -> Self {
        let Some(first) = rows.first().filter(|_| activity::is_recorded()) else {
            return Self::NotRecorded;
        };
        let tenant = &first.item.tenant;
        if rows.iter().all(|row| row.item.tenant == *tenant) {
            return Self::Same(tenant.clone());
        }
        Self::ById(rows.iter().map(|row| (row.item.id, row.item.tenant.clone())).collect())
    }
}

impl BatchLease {
    /// Records the outcomes that were written as activity of the rows' tenants.
    pub(super) fn record(&self, outcomes: &[(ItemId, ItemOutcome)], resolved: &[Resolved]) {
        let written = outcomes.iter().zip(resolved);
        let written = written.filter(|(_, resolved)| **resolved != Resolved::Lost);
        let (queue, tenants) = (self.queue.name.as_str(), &self.tenants);
        let record = |tenant: &Tenant, outcomes: QueueOutcomes| {
            activity::record(Activity::Resolved { tenant, queue, outcomes });
        };
        match tenants {
            RowTenants::NotRecorded => {}
            RowTenants::Same(tenant) => {
                let mut sum = QueueOutcomes::default();
                written.for_each(|((_, outcome), _)| sum.add(&counted(outcome)));
                record(tenant, sum);
            }
            RowTenants::ById(tenants) => {
                for ((id, outcome), _) in written {
                    tenants.get(id).into_iter().for_each(|of| record(of, counted(outcome)));
                }
            }
        }
    }

    /// How long ago the lease was asked for.
    pub fn elapsed(&self) -> Duration {
        self.asked_at.elapsed()
    }

    /// Until when the rows are ours.
    pub fn deadline(&self) -> &LeaseDeadline {
        &self.deadline
    }

    /// When the first renewal is due.
    pub(super) fn first_renewal(&self) -> Instant {
        deadline_after(self.asked_at, self.renewal_interval())
    }

    fn renewal_interval(&self) -> Duration {
        self.queue.lease / 3
    }

    /// Extends the lease of what should be so many rows; returns when the next renewal is due. If fewer
    /// rows are still ours, the deadline has passed for the whole batch: the store does not say which
    /// rows went to another holder.
    pub(super) async fn renew(&self, unresolved: u64) -> Instant {
        let LeasedQueue { store, name, lease, store_timeout } = &*self.queue;
        let asked_at = Instant::now();
        match with_timeout(*store_timeout, store.renew(name, &self.token, *lease)).await {
            Ok(renewed) if renewed >= unresolved => {
                self.deadline.set(deadline_after(asked_at, *lease))
            }
            Ok(_) => self.deadline.set(asked_at),
            Err(error) => report_store_error("renewing a lease", &error),
        }
        deadline_after(asked_at, self.renewal_interval())
    }

    pub(super) async fn resolve(
        &self,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> StoreResult<Vec<Resolved>> {
        let LeasedQueue { store, name, store_timeout, .. } = &*self.queue;
        let resolved =
            with_timeout(*store_timeout, store.resolve(name, &self.token, outcomes)).await;
        resolved.inspect_err(|error| report_store_error("writing the outcomes of rows", error))
    }

    /// Whether the lease lapsed so long ago that another holder has certainly leased the rows.
    pub(super) fn is_long_lapsed(&self) -> bool {
        Instant::now() >= self.deadline.until() + self.queue.lease
    }
}

/// Until when the rows of a batch are ours, counted from before the lease was asked for: never longer
/// than by the store's clock.
pub struct LeaseDeadline(Mutex<Instant>);

impl LeaseDeadline {
    fn new(until: Instant) -> Self {
        Self(Mutex::new(until))
    }

    /// Whether the rows are ours now.
    pub fn is_ours(&self) -> bool {
        Instant::now() < self.until()
    }

    fn until(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// An outcome as a count. A row that is handed back was not tried.
fn counted(outcome: &ItemOutcome) -> QueueOutcomes {
    let mut counts = QueueOutcomes::default();
    match outcome {
        ItemOutcome::Ack { .. } => counts.acked = 1,
        ItemOutcome::Retry { counts: true, .. } => counts.retried = 1,
        ItemOutcome::Retry { .. } => {}
        ItemOutcome::Bury { .. } => counts.buried = 1,
    }
    counts
}

fn report_store_error(call: &str, error: &StoreError) {
    metric_names::count_store_error(error);
    tracing::warn!(reason = error.label(), "{call} failed: {error}");
}
