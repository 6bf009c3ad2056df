//! Writes the outcomes of one batch to the store and renews its lease meanwhile.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until};

use super::BatchLease;
use crate::queue::{ItemId, ItemOutcome, Resolved};

/// The pause before outcomes that could not be written are written again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Sends the outcomes of rows to the [`OutcomeWriter`]. `T` is dropped when the outcome is written or
/// given up: a permit, for example, that counts the row as in flight until then.
pub struct OutcomeSender<T = ()>(UnboundedSender<(ItemId, ItemOutcome, T)>);

impl<T> Clone for OutcomeSender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> OutcomeSender<T> {
    /// Sends the outcome of one row.
    pub fn send(&self, id: ItemId, outcome: ItemOutcome, until_written: T) {
        // The writer ends only after every sender; where it was dropped, the lease runs out.
        let _ = self.0.send((id, outcome, until_written));
    }
}

/// The result of a call that wrote outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteReport<'a> {
    /// The outcomes were written; one answer for each.
    Written(&'a [Resolved]),
    /// The outcomes were given up: the rows are leased again when their lease runs out.
    GivenUp,
}

type OnReport = dyn Fn(&[(ItemId, ItemOutcome)], WriteReport<'_>) + Send + Sync;

/// Writes the outcomes of one batch in as few calls as the store's speed asks for, and renews the
/// lease. Both in one task: a renewal beside a running `resolve` would count rows as lost that have
/// just been resolved.
pub struct OutcomeWriter<T = ()> {
    lease: Arc<BatchLease>,
    received: UnboundedReceiver<(ItemId, ItemOutcome, T)>,
    outcomes: Vec<(ItemId, ItemOutcome)>,
    until_written: Vec<T>,
    /// Rows that the lease should still hold.
    unresolved: u64,
    renew_at: Instant,
    retries: bool,
    on_report: Option<Box<OnReport>>,
}

impl<T> OutcomeWriter<T> {
    /// A writer for a batch of so many rows, and the sender of their outcomes.
    pub fn new(lease: &Arc<BatchLease>, rows: usize) -> (OutcomeSender<T>, Self) {
        let (sender, received) = unbounded_channel();
        let writer = Self {
            lease: lease.clone(),
            received,
            outcomes: Vec::new(),
            until_written: Vec::new(),
            unresolved: rows as u64,
            renew_at: lease.first_renewal(),
            retries: true,
            on_report: None,
        };
        (OutcomeSender(sender), writer)
    }

    /// Gives outcomes up at the first failed call, instead of trying again until the lease has long
    /// lapsed. For rows whose second lease does no harm.
    #[must_use]
    pub fn without_retries(mut self) -> Self {
        self.retries = false;
        self
    }

    /// Calls this after each call to the store, such as to count outcomes.
    #[must_use]
    pub fn on_report(
        mut self,
        report: impl Fn(&[(ItemId, ItemOutcome)], WriteReport<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.on_report = Some(Box::new(report));
        self
    }

    /// Runs `work` and writes what its [`OutcomeSender`]s send; ends when all senders are dropped and
    /// everything is written or given up.
    pub async fn run_while_renewing(self, work: impl Future<Output = ()>) {
        tokio::join!(work, self.write_until_closed());
    }

    /// Outcomes that arrive while a call is on its way go with the next one, so that the calls are as
    /// large as the work is fast.
    async fn write_until_closed(mut self) {
        let mut batch = Vec::new();
        loop {
            if self.outcomes.is_empty() {
                tokio::select! {
                    count = self.received.recv_many(&mut batch, usize::MAX) => {
                        if count == 0 {
                            return;
                        }
                    }
                    () = sleep_until(self.renew_at) => {}
                }
            }
            while let Ok(received) = self.received.try_recv() {
                batch.push(received);
            }
            for (id, outcome, until_written) in batch.drain(..) {
                self.outcomes.push((id, outcome));
                self.until_written.push(until_written);
            }
            if Instant::now() >= self.renew_at {
                self.renew_at = self.lease.renew(self.unresolved).await;
            }
            if !self.outcomes.is_empty() && !self.write().await {
                sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Writes the received outcomes; false where the caller must wait before the next try.
    async fn write(&mut self) -> bool {
        match self.lease.resolve(&self.outcomes).await {
            Ok(resolved) => {
                self.unresolved = self.unresolved.saturating_sub(resolved.len() as u64);
                self.lease.record(&self.outcomes, &resolved);
                self.report(WriteReport::Written(&resolved));
            }
            Err(_) if !self.retries || self.lease.is_long_lapsed() => {
                self.report(WriteReport::GivenUp);
            }
            Err(_) => return false,
        }
        self.outcomes.clear();
        self.until_written.clear();
        true
    }

    fn report(&self, report: WriteReport<'_>) {
        if let Some(on_report) = &self.on_report {
            on_report(&self.outcomes, report);
        }
    }
}
