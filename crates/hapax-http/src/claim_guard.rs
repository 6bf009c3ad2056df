//! Owns the claim of a first run: settles it (in the background if the store fails), gives it back or
//! leaves its outcome unknown.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::activity::{self, Activity};
use hapax_core::claims::ClaimState;
use hapax_core::command::{CommandError, RunningCommand, StoredResponse};
use hapax_core::{StoreError, with_timeout};
use http::{Method, Response};
use tokio::time::Instant;

use crate::layer::{FirstRunGuard, Shared};
use crate::limits::{CallerPermit, RunPresence};
use crate::replay::{in_progress, outcome_unknown};
use crate::{FullBody, IdempotencyConfig, IdempotencyEvent, KeyedRequest, Verdict, replay};

/// How long a settle that fails is retried. The store may be back long after the lease has run out,
/// and a late settle is accepted unless another attempt has taken over.
const RETRY_SETTLE_FOR: Duration = Duration::from_secs(600);

/// A granted claim while its request runs. It always ends: settled, given back or, also where the
/// service panicked, marked as unknown.
pub(crate) struct ClaimGuard {
    /// `None` once ended.
    running: Option<RunningCommand>,
    keyed: KeyedRequest,
    method: Method,
    shared: Arc<Shared>,
    counted: Option<RunGuards>,
}

/// Counts a run until its outcome is stored: for the drain, for its caller, and among the detached
/// ones once its client has left.
pub(crate) type RunGuards = (FirstRunGuard, CallerPermit, RunPresence);

/// How a claim ends.
enum ClaimEnd {
    Settle(StoredResponse, IdempotencyEvent),
    GiveBack,
}

impl ClaimEnd {
    async fn write(&self, running: &RunningCommand, timeout: Duration) -> Result<(), CommandError> {
        match self {
            Self::Settle(response, _) => within(timeout, running.complete(response)).await,
            Self::GiveBack => within(timeout, running.fail()).await,
        }
    }

    fn event(&self) -> IdempotencyEvent {
        match self {
            Self::Settle(_, event) => *event,
            Self::GiveBack => IdempotencyEvent::GivenBack,
        }
    }
}

/// Ends a store call after `timeout`, should the store exceed its own.
pub(crate) async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    let late = |_| Err(CommandError::Store(StoreError::Timeout { timeout }));
    tokio::time::timeout(timeout, call).await.unwrap_or_else(late)
}

impl ClaimGuard {
    pub(crate) fn new(
        running: RunningCommand,
        keyed: KeyedRequest,
        method: Method,
        shared: Arc<Shared>,
        counted: RunGuards,
    ) -> Self {
        Self { running: Some(running), keyed, method, shared, counted: Some(counted) }
    }

    pub(crate) fn config(&self) -> &IdempotencyConfig {
        &self.shared.config
    }

    /// Stores the response. Where the store fails, the settle is retried in the background: the
    /// effect happened, and its caller gets the response either way. Where another attempt has
    /// taken over, the error is that attempt's response.
    pub(crate) async fn settle(self, stored: StoredResponse) -> Result<(), Response<FullBody>> {
        self.end(ClaimEnd::Settle(stored, IdempotencyEvent::Kept)).await
    }

    pub(crate) async fn settle_tombstone(
        self,
        tombstone: StoredResponse,
    ) -> Result<(), Response<FullBody>> {
        self.end(ClaimEnd::Settle(tombstone, IdempotencyEvent::NotKept)).await
    }

    /// Frees the key for a retry.
    pub(crate) async fn give_back(self) {
        let _ = self.end(ClaimEnd::GiveBack).await;
    }

    /// Ends the claim without a stored response.
    pub(crate) async fn end_unstored(self, verdict: Verdict) {
        match verdict {
            Verdict::GiveBack => self.give_back().await,
            Verdict::Keep | Verdict::Unknown => self.abandon().await,
        }
    }

    async fn end(mut self, end: ClaimEnd) -> Result<(), Response<FullBody>> {
        let Some(running) = self.running.take() else { return Ok(()) };
        match end.write(&running, self.config().store_timeout).await {
            Ok(()) => {
                self.record(end.event());
                Ok(())
            }
            Err(CommandError::Store(error)) => {
                self.record(IdempotencyEvent::StoreError);
                tracing::warn!(%error, "storing the outcome of a request failed; retrying");
                tokio::spawn(self.settle_in_background(running, end));
                Ok(())
            }
            Err(_) => {
                self.record(IdempotencyEvent::Lost);
                Err(Box::pin(self.winner_response()).await)
            }
        }
    }

    /// Retries after the response was sent. Meanwhile `running` renews the lease where it can.
    async fn settle_in_background(self, running: RunningCommand, end: ClaimEnd) {
        let since = Instant::now();
        let mut pause = Duration::from_millis(100);
        while since.elapsed() < RETRY_SETTLE_FOR {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
            match end.write(&running, self.config().store_timeout).await {
                Err(CommandError::Store(_)) => {}
                Ok(()) => return self.record(end.event()),
                Err(_) => return self.record(IdempotencyEvent::Lost),
            }
        }
        tracing::error!("the outcome of a request could not be stored; it is unknown now");
    }

    /// The response of the attempt that has taken over.
    async fn winner_response(&self) -> Response<FullBody> {
        let config = self.config();
        let view =
            with_timeout(config.store_timeout, self.shared.store.look(self.keyed.key())).await;
        let view = view.ok().flatten();
        let view = view.filter(|view| view.fingerprint == self.keyed.claim().fingerprint);
        match view.map(|view| view.state) {
            Some(ClaimState::Settled { value, expires_in }) => {
                match StoredResponse::decode(value) {
                    Ok(stored) => replay(&stored, expires_in),
                    Err(_) => in_progress(config.lease).response(),
                }
            }
            Some(ClaimState::Pending { lease_left }) => in_progress(lease_left).response(),
            Some(ClaimState::Unknown { since, .. }) => outcome_unknown(since).response(),
            _ => in_progress(config.lease).response(),
        }
    }

    /// Marks the outcome as unknown.
    pub(crate) async fn abandon(mut self) {
        if let Some(running) = self.running.take() {
            self.record(IdempotencyEvent::Unknown);
            // Where this fails, the outcome becomes unknown when the lease runs out.
            let _ = with_timeout(self.config().store_timeout, running.abandon()).await;
        }
    }

    fn record(&self, event: IdempotencyEvent) {
        self.config().record_event(event, &self.method);
        if matches!(event, IdempotencyEvent::Kept | IdempotencyEvent::NotKept) {
            activity::record(Activity::Settled(self.keyed.key()));
        }
    }
}

impl Drop for ClaimGuard {
    /// Only a panic, or the end of the runtime, drops a claim that has not ended.
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.record(IdempotencyEvent::Unknown);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (timeout, counted) = (self.config().store_timeout, self.counted.take());
            runtime.spawn(async move {
                let _ = with_timeout(timeout, running.abandon()).await;
                drop(counted);
            });
        }
    }
}
