//! Whether an event is handled now: once for each event, one at a time for each user.

use std::time::Duration;

use hapax_core::command::{Begun, CommandConfig, CommandError, RunningCommand, Started};
use hapax_core::lock::{LockConfig, LockError, LockGuard, OnStoreError};
use hapax_core::queue::{ItemId, LeasedItem};
use hapax_core::{Fence, OnUnknown, metric_names};
use metrics::counter;
use tokio::time::Instant;

use super::local::Progress;
use super::{Arrived, Budget, Inner, count_event};
use crate::Guarding;

/// Handled events are commands of this operation, so that operators see those whose outcome is
/// unknown.
const OPERATION: &str = "line";
/// How long to leave an event alone that this process is at already.
const IN_HAND: Duration = Duration::from_secs(1);

/// What is to be done with an event.
pub(super) enum Admission {
    /// Handle it.
    Go(Pass),
    /// It was begun before, or is late, and somebody has its user's lock: handle it when that is free.
    Wait(RunningCommand, String, LockConfig),
    /// Tell its user to wait.
    Busy(RunningCommand),
    /// It was handled before.
    Duplicate,
    /// The store does not answer: leave it alone for so long.
    Later(Duration),
    /// Somebody is at it: leave it alone for so long.
    InOtherHands(Duration),
    /// It must not be handled (again), for this reason.
    Dead(&'static str),
}

impl From<Progress> for Admission {
    /// Of an event that this process knows already.
    fn from(progress: Progress) -> Self {
        match progress {
            Progress::Done => Self::Duplicate,
            Progress::InHand => Self::InOtherHands(IN_HAND),
        }
    }
}

/// Why it is a dead letter that nobody knows about.
const UNKNOWN: &str = "it is not known whether the event was handled";
/// … and one that was begun again and again, and never ended: it may be what ends the process.
const NEVER_ENDS: &str = "handling the event was begun too often, and never came to an end";

/// What an event is handled with.
#[derive(Default)]
pub(super) struct Pass {
    /// `None` where the store is away.
    pub(super) running: Option<RunningCommand>,
    pub(super) guard: Option<LockGuard>,
}

impl Pass {
    /// The lock's fence grows with every event of the user, the command's with every attempt.
    pub(super) fn fence(&self) -> Option<Fence> {
        let lock = self.guard.as_ref().and_then(LockGuard::fence);
        lock.or_else(|| self.running.as_ref().map(RunningCommand::fence))
    }
}

/// Which attempt it is: by the lease, which also counts those that the store did not hear of, and by the
/// mark, which also counts those before an operator put it back.
pub(super) fn which_attempt(leased: &LeasedItem, running: Option<&RunningCommand>) -> u32 {
    running.map_or(leased.attempt, |running| leased.attempt.max(running.attempt()))
}

impl Inner {
    pub(super) async fn admit(
        &self,
        event: &Arrived,
        leased: &LeasedItem,
        budget: &Budget,
    ) -> Admission {
        // In the first lease nothing can be unknown, unless an operator has put a dead letter back:
        // that is the word to handle it again.
        let requeued = leased.attempt == 1;
        let policy = if requeued { OnUnknown::TakeOver } else { self.settings.on_unknown };
        match budget.spend(self.start(event.id, policy)).await {
            Some(Ok(Started::Running(running))) => {
                if leased.attempt.min(running.attempt()) > self.settings.max_attempts {
                    let _ = running.fail().await;
                    return Admission::Dead(NEVER_ENDS);
                }
                self.guard(event, leased, running, budget).await
            }
            Some(Ok(Started::Answered(begun))) => match begun {
                Begun::InProgress { retry_after } => Admission::InOtherHands(retry_after),
                Begun::OutcomeUnknown { .. } | Begun::KeyReused => Admission::Dead(UNKNOWN),
                _ => Admission::Duplicate,
            },
            Some(Err(_)) | None => match self.settings.on_store_error {
                OnStoreError::Open => {
                    count_event(event.kind(), "unprotected");
                    self.local.go_on(event.id);
                    Admission::Go(Pass::default())
                }
                OnStoreError::Closed => Admission::Later(self.settings.backoff),
            },
        }
    }

    /// Says in the store that an event is in hand.
    pub(super) async fn start(
        &self,
        id: ItemId,
        on_unknown: OnUnknown,
    ) -> Result<Started, CommandError> {
        let begin = CommandConfig {
            lease: self.settings.lease,
            retention: self.settings.remember,
            on_unknown,
            ..CommandConfig::default()
        };
        self.commands.start(OPERATION, &id.to_string(), &begin).await
    }

    /// Takes the lock of the event's user, where the rules want one.
    async fn guard(
        &self,
        event: &Arrived,
        leased: &LeasedItem,
        running: RunningCommand,
        budget: &Budget,
    ) -> Admission {
        let go = |running, guard| Admission::Go(Pass { running: Some(running), guard });
        let Some(hold) = self.hold(self.settings.rules.guarding(&event.event)) else {
            return go(running, None);
        };
        let Some(user) = event.event.user_id() else {
            tracing::warn!(event_type = %event.kind(), "no user to lock: it passes");
            return go(running, None);
        };
        let key = format!("processing:user:{user}");
        let locks = self.locks.clone().source(event.kind().as_str());
        match budget.spend(locks.acquire(&key, &hold)).await {
            Some(Ok(guard)) => go(running, Some(guard)),
            // Nobody could be told to wait by a token that is too old: it would be lost.
            Some(Err(LockError::Held { .. }))
                if which_attempt(leased, Some(&running)) > 1
                    || Instant::now() >= event.reply_until =>
            {
                Admission::Wait(running, key, hold)
            }
            Some(Err(LockError::Held { .. })) => {
                tracing::info!(event_type = %event.kind(), "missed");
                Admission::Busy(running)
            }
            Some(Err(LockError::Store(_))) | None
                if self.settings.on_store_error == OnStoreError::Closed =>
            {
                let _ = running.fail().await;
                Admission::Later(self.settings.backoff)
            }
            // Also a user id that cannot be one.
            failed => {
                if failed.is_none() {
                    let source = event.kind().as_str();
                    counter!(metric_names::LOCK_ACQUIRE, "status" => "open", "source_type" => source)
                        .increment(1);
                }
                tracing::warn!(event_type = %event.kind(), "no lock: it passes");
                go(running, None)
            }
        }
    }

    fn hold(&self, guarding: Guarding) -> Option<LockConfig> {
        let hold = LockConfig {
            wait: Duration::ZERO,
            renew_for: None,
            on_store_error: self.settings.on_store_error,
            ..LockConfig::default()
        };
        match guarding {
            Guarding::None => None,
            Guarding::Mutex { ttl, renew } => {
                let renew_for = renew.then_some(self.settings.handle_limit);
                Some(LockConfig { ttl, renew_for, ..hold })
            }
            Guarding::Throttle { window } => {
                Some(LockConfig { ttl: window, throttle: true, ..hold })
            }
        }
    }
}
