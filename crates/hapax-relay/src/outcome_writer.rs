//! Tells the store what became of the rows of one batch, and keeps their lease alive.

use std::time::Duration;

use hapax_core::queue::{ItemId, ItemOutcome, Resolved};
use hapax_core::{StoreError, Token, metric_names, with_timeout};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, sleep, sleep_until};

use crate::held::Held;
use crate::relay::Inner;

/// Between two tries to tell a store that does not answer.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct OutcomeWriter<'a> {
    pub(crate) relay: &'a Inner,
    pub(crate) held: &'a Held,
    pub(crate) token: &'a Token,
    /// Rows that the token should still hold.
    pub(crate) open: u64,
    pub(crate) renew_at: Instant,
}

impl OutcomeWriter<'_> {
    /// Works until everything was said and told. What is said while a call is on its way goes with
    /// the next one, so that the calls are as large as the sink is fast.
    pub(crate) async fn run(mut self, mut said: UnboundedReceiver<(ItemId, ItemOutcome)>) {
        let mut outcomes = Vec::new();
        loop {
            if outcomes.is_empty() {
                tokio::select! {
                    heard = said.recv_many(&mut outcomes, usize::MAX) => if heard == 0 { return },
                    () = sleep_until(self.renew_at) => {}
                }
            } else {
                while let Ok(outcome) = said.try_recv() {
                    outcomes.push(outcome);
                }
            }
            if Instant::now() >= self.renew_at {
                self.renew().await;
            }
            if !outcomes.is_empty() && !self.tell(&mut outcomes).await {
                sleep(PAUSE).await;
            }
        }
    }

    /// Whether the store heard it. One that does not for so long that the rows are leased anew by now
    /// will not: then the rows are sent again, by whoever has them.
    async fn tell(&mut self, outcomes: &mut Vec<(ItemId, ItemOutcome)>) -> bool {
        let (queue, config) = (&self.relay.queue, &self.relay.config);
        let call = queue.resolve(&config.queue, self.token, outcomes);
        match with_timeout(config.store_timeout, call).await {
            Ok(resolved) => {
                let results = resolved.into_iter().map(|resolved| match resolved {
                    Resolved::Done => "done",
                    Resolved::Lost => "lost",
                });
                count(outcomes, results);
                self.open = self.open.saturating_sub(outcomes.len() as u64);
                outcomes.clear();
                true
            }
            Err(error) => {
                self.relay.store_failed("telling what became of rows", &error);
                if Instant::now() >= self.held.until() + config.lease {
                    count(outcomes, std::iter::repeat("error"));
                    outcomes.clear();
                }
                false
            }
        }
    }

    /// Extends the lease. Where some rows are in other hands already, nothing of the batch is sent any
    /// more: we cannot tell which.
    async fn renew(&mut self) {
        let config = &self.relay.config;
        let asked_at = Instant::now();
        self.renew_at = asked_at + config.lease / 3;
        let call = self.relay.queue.renew(&config.queue, self.token, config.lease);
        match with_timeout(config.store_timeout, call).await {
            Ok(held) if held >= self.open => self.held.set(asked_at + config.lease),
            Ok(_) => self.held.set(asked_at),
            Err(error) => self.relay.store_failed("renewing a lease", &error),
        }
    }
}

impl Inner {
    pub(crate) fn store_failed(&self, what: &str, error: &StoreError) {
        metrics::counter!(metric_names::STORE_ERRORS, "reason" => error.label()).increment(1);
        tracing::warn!(reason = error.label(), "{what} failed: {error}");
    }
}

fn count(outcomes: &[(ItemId, ItemOutcome)], results: impl Iterator<Item = &'static str>) {
    let told = outcomes.iter().map(|(_, outcome)| match outcome {
        ItemOutcome::Ack { .. } => "acked",
        ItemOutcome::Retry { counts: true, .. } => "retried",
        ItemOutcome::Retry { counts: false, .. } => "handed_back",
        ItemOutcome::Bury { .. } => "buried",
    });
    let told: Vec<_> = told.zip(results).collect();
    // Most have the same labels, which are looked up once for all that follow each other.
    for same in told.chunk_by(PartialEq::eq) {
        let (outcome, result) = same[0];
        metrics::counter!(metric_names::RELAY_RESOLVED, "outcome" => outcome, "result" => result)
            .increment(same.len() as u64);
    }
}
