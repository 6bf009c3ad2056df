//! The claims of effects that must happen once: those of commands and of the inbox.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics::counter;
use tokio::time::Instant;

use crate::activity::{self, Activity, ClaimActivity};
use crate::claim_retry::{self, ClaimAnswer, count_step, retry_once_on_disconnect};
use crate::{
    ClaimRequest, Claimed, Claims, Fence, GiveBack, Key, OnceError, Step, StoreError, StoreResult,
    Ticket, Token, metric_names,
};

/// The metrics of a feature's claims, and the values of their labels.
pub(crate) struct ClaimMetrics {
    pub(crate) begin: &'static str,
    pub(crate) begun: fn(&Claimed) -> &'static str,
    pub(crate) end: &'static str,
    pub(crate) settled: &'static str,
    pub(crate) given_back: &'static str,
}

/// Claims, settles and gives back on a store, and counts the results.
#[derive(Clone)]
pub(crate) struct EffectClaims {
    pub(crate) store: Arc<dyn Claims>,
    pub(crate) metrics: &'static ClaimMetrics,
    /// The label of the owner of claims.
    pub(crate) label: Option<Arc<str>>,
    /// Whether claims are recorded as activity; not where an edge does so itself.
    pub(crate) records: bool,
}

impl EffectClaims {
    pub(crate) fn new(store: Arc<dyn Claims>, metrics: &'static ClaimMetrics) -> Self {
        Self { store, metrics, label: None, records: true }
    }

    /// Claims a key, and waits up to `wait` for another owner to settle it.
    pub(crate) async fn claim(
        &self,
        key: &Key,
        request: &ClaimRequest,
        wait: Duration,
    ) -> StoreResult<Claimed> {
        let begun = Instant::now();
        let answer = claim_retry::claim(&self.store, key, request, wait, GiveBack::Keep).await;
        if self.records {
            let (answer, took) = (claim_activity(&answer), Some(begun.elapsed()));
            activity::record(Activity::Claim { key, answer, took });
        }
        let claimed = answer.map(|answer| answer.claimed);
        let result = claimed.as_ref().map_or("error", self.metrics.begun);
        counter!(self.metrics.begin, "result" => result).increment(1);
        claimed
    }

    /// Settles a claim; `lost` is the error for a token that does not own it.
    pub(crate) async fn settle<E: From<StoreError>>(
        &self,
        key: &Key,
        token: &Token,
        value: Bytes,
        lost: E,
    ) -> Result<(), E> {
        let settle = || self.store.settle(key, token, value.clone());
        let answer = retry_once_on_disconnect(settle).await;
        if self.records && matches!(answer, Ok(Step::Done(_))) {
            activity::record(Activity::Settled(key));
        }
        count_step(answer, "done", lost, |result| self.count_end(self.metrics.settled, result))
    }

    /// Gives a claim back as failed; `lost` is the error for a token that does not own it.
    pub(crate) async fn give_back<E: From<StoreError>>(
        &self,
        key: &Key,
        token: &Token,
        lost: E,
    ) -> Result<(), E> {
        let give_back = || self.store.give_back(key, token, GiveBack::Keep);
        let answer = retry_once_on_disconnect(give_back).await;
        count_step(answer, "done", lost, |result| self.count_end(self.metrics.given_back, result))
    }

    /// Makes a claim last `lease` from now; `lost` is the error for a token that does not own it.
    pub(crate) async fn renew<E: From<StoreError>>(
        &self,
        key: &Key,
        token: &Token,
        lease: Duration,
        lost: E,
    ) -> Result<Fence, E> {
        match retry_once_on_disconnect(|| self.store.extend(key, token, lease)).await {
            Ok(Step::Done(fence)) => {
                activity::record(Activity::Renewed(key));
                Ok(fence)
            }
            Ok(Step::Lost) => Err(lost),
            Err(error) => {
                metric_names::count_store_error(&error);
                Err(error.into())
            }
        }
    }

    fn count_end(&self, how: &'static str, result: &'static str) {
        counter!(self.metrics.end, "how" => how, "result" => result).increment(1);
    }

    /// Runs an effect and renews its claim meanwhile. Then settles the claim with what `stored`
    /// makes of the value, or gives it back if the effect failed.
    pub(crate) async fn run<T, E>(
        &self,
        key: &Key,
        Ticket { token, .. }: &Ticket,
        lease: Duration,
        effect: impl Future<Output = Result<T, E>>,
        stored: impl FnOnce(&T) -> Result<Bytes, OnceError<E>>,
    ) -> Result<T, OnceError<E>> {
        let renewed =
            claim_retry::run_while_renewing(self.store.as_ref(), key, token, lease, effect);
        match renewed.await {
            Ok(value) => {
                self.settle(key, token, stored(&value)?, OnceError::Lost).await?;
                Ok(value)
            }
            Err(error) => {
                // The effect's error matters more; where this fails too, the lease runs out.
                let _: Result<(), OnceError<E>> = self.give_back(key, token, OnceError::Lost).await;
                Err(OnceError::Failed(error))
            }
        }
    }
}

fn claim_activity(answer: &StoreResult<ClaimAnswer>) -> ClaimActivity {
    let Ok(ClaimAnswer { claimed, waited, .. }) = answer else { return ClaimActivity::Failed };
    match claimed {
        Claimed::Granted { .. } => ClaimActivity::FirstRun,
        Claimed::Settled { .. } if *waited => ClaimActivity::Waited,
        Claimed::Settled { .. } => ClaimActivity::Replayed,
        Claimed::Busy { .. } => ClaimActivity::InProgress,
        Claimed::Mismatch => ClaimActivity::Reused,
        Claimed::Unknown { .. } => ClaimActivity::Unknown,
    }
}
