//! Decides whether an event is handled now: each event once, one event per user at a time.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::command::{Begun, CommandConfig, CommandError, Commands, RunningCommand, Started};
use hapax_core::lock::{LockConfig, LockError, LockGuard, Locks, OnStoreError};
use hapax_core::queue::{ItemId, LeasedItem};
use hapax_core::{Claims, Fence, OnUnknown, Operation, metric_names};
use metrics::counter;
use tokio::time::Instant;

use super::local_state::LocalProgress;
use super::{GatewayShared, ReceivedEvent, SharedTimeout};
use crate::{GatewayConfig, LockRule};

/// Events are commands of this operation, so that operators see those with an unknown outcome.
pub(super) const OPERATION: &str = "line";
/// When to look again at an event that this process is handling already.
const IN_HAND_RETRY: Duration = Duration::from_secs(1);
/// How long a retried event waits for its user's lock before it goes back to the queue: longer than the
/// TTL of a lock that is not renewed.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(10);
/// The reason of a dead letter with an unknown outcome.
const OUTCOME_UNKNOWN: &str = "it is not known whether the event was handled";
/// The reason of a dead letter that may be what ends the process each time.
const NEVER_ENDS: &str = "handling the event was begun too often, and never came to an end";

/// The decision about an event.
pub(super) enum AdmissionDecision {
    Execute(Permit),
    /// The event was begun before, or is late, and its user's lock is held: execute it when the lock is
    /// free.
    WaitForLock(RunningCommand, LockRequest),
    /// The user's lock is held: tell the user to wait.
    TellToWait(RunningCommand),
    /// The event was handled before.
    Duplicate,
    /// The store does not answer: try again after this time.
    RetryLater(Duration),
    /// Another process, or this one, is handling the event: look again after this time.
    InProgress(Duration),
    /// The event must not be handled (again), for this reason.
    Bury(&'static str),
}

impl From<LocalProgress> for AdmissionDecision {
    fn from(progress: LocalProgress) -> Self {
        match progress {
            LocalProgress::Handled => Self::Duplicate,
            LocalProgress::InHand => Self::InProgress(IN_HAND_RETRY),
        }
    }
}

/// The right to execute an event.
#[derive(Default)]
pub(super) struct Permit {
    /// The event's mark in the store; `None` where the store is down.
    pub(super) running: Option<RunningCommand>,
    /// The user's lock; `None` where the rules ask for none or the store is down.
    pub(super) guard: Option<LockGuard>,
}

impl Permit {
    /// The lock's fence grows with every event of the user, the command's with every attempt.
    pub(super) fn fence(&self) -> Option<Fence> {
        let lock = self.guard.as_ref().and_then(LockGuard::fence);
        lock.or_else(|| self.running.as_ref().map(RunningCommand::fence))
    }
}

/// The answer to a request for the lock of a source.
pub(super) enum SourceLock {
    /// The events may be handled; without a guard where the store is down.
    Entered(Option<LockGuard>),
    /// Another process handles events of the source.
    Busy,
}

/// The lock that an event needs.
pub(super) struct LockRequest {
    key: String,
    hold: LockConfig,
}

/// The number of the attempt. It follows the event's mark in the store, which counts every attempt and never goes back: a
/// lease that was handed back because the bot was away is not counted in the row.
pub(super) fn attempt_number(row: &LeasedItem, running: Option<&RunningCommand>) -> u32 {
    running.map_or(row.attempt, RunningCommand::attempt)
}

/// Whether an earlier attempt may have reached the bot, also one that the store never learned of.
pub(super) fn was_tried_before(row: &LeasedItem, running: Option<&RunningCommand>) -> bool {
    row.attempt > 1 || attempt_number(row, running) > 1
}

/// Begins events and takes their locks.
pub(super) struct Admission {
    commands: Commands,
    locks: Locks,
    shared: Arc<GatewayShared>,
}

impl Admission {
    pub(super) fn new(shared: Arc<GatewayShared>) -> Self {
        let (claims, tenant): (Arc<dyn Claims>, _) = (shared.store.clone(), &shared.config.tenant);
        let mut commands = Commands::new(claims.clone()).tenant(tenant.clone());
        let mut locks = Locks::new(claims).tenant(tenant.clone());
        if let Some(label) = &shared.config.label {
            (commands, locks) = (commands.label(label), locks.label(label));
        }
        Self { commands, locks, shared }
    }

    /// Decides about a leased event, within what is left of the store timeout.
    pub(super) async fn admit(
        &self,
        event: &ReceivedEvent,
        row: &LeasedItem,
        store_timeout: &SharedTimeout,
    ) -> AdmissionDecision {
        // In the first lease the outcome can be unknown only if an operator has requeued the dead letter,
        // which is the decision to handle it again.
        let is_first = row.attempt == 1;
        let on_unknown = if is_first { OnUnknown::TakeOver } else { self.shared.config.on_unknown };
        match store_timeout.run(self.begin(event.id, on_unknown)).await {
            Some(Ok(Started::Running(running))) => {
                if row.attempt.min(running.attempt()) > self.shared.config.max_attempts {
                    let _ = running.fail().await;
                    return AdmissionDecision::Bury(NEVER_ENDS);
                }
                self.lock_user(event, row, running, store_timeout).await
            }
            Some(Ok(Started::Answered(begun))) => match begun {
                Begun::InProgress { retry_after } => AdmissionDecision::InProgress(retry_after),
                Begun::OutcomeUnknown { .. } | Begun::KeyReused => {
                    AdmissionDecision::Bury(OUTCOME_UNKNOWN)
                }
                _ => AdmissionDecision::Duplicate,
            },
            Some(Err(_)) | None => match self.shared.config.on_store_error {
                OnStoreError::Open => {
                    self.shared.count_event(event.kind(), "unprotected");
                    self.shared.local.continue_unprotected(event.id);
                    AdmissionDecision::Execute(Permit::default())
                }
                OnStoreError::Closed => self.retry_later(),
            },
        }
    }

    /// Marks in the store that an event is being handled.
    pub(super) async fn begin(
        &self,
        id: ItemId,
        on_unknown: OnUnknown,
    ) -> Result<Started, CommandError> {
        let begin = CommandConfig::default()
            .lease(self.shared.config.lease)
            .retention(self.shared.config.retention)
            .on_unknown(on_unknown);
        self.commands.start(Operation(OPERATION), &id.to_string(), &begin).await
    }

    /// Takes the lock of the event's user, if the rules ask for one.
    async fn lock_user(
        &self,
        event: &ReceivedEvent,
        row: &LeasedItem,
        running: RunningCommand,
        store_timeout: &SharedTimeout,
    ) -> AdmissionDecision {
        let execute =
            |running, guard| AdmissionDecision::Execute(Permit { running: Some(running), guard });
        let Some(hold) = self.hold(self.shared.config.rules.rule_for(&event.event)) else {
            return execute(running, None);
        };
        let Some(user) = event.event.user_id() else {
            tracing::warn!(event_type = %event.kind(), "no user to lock: handled without a lock");
            return execute(running, None);
        };
        let lock = LockRequest { key: format!("processing:user:{user}"), hold };
        match store_timeout.run(self.acquire(event, &lock.key, &lock.hold)).await {
            Some(Ok(guard)) => execute(running, Some(guard)),
            // A reply token that is too old cannot tell the user to wait: the event would be lost.
            Some(Err(LockError::Held { .. }))
                if was_tried_before(row, Some(&running)) || Instant::now() >= event.reply_until =>
            {
                AdmissionDecision::WaitForLock(running, lock)
            }
            Some(Err(LockError::Held { .. })) => {
                tracing::info!(event_type = %event.kind(), "missed");
                AdmissionDecision::TellToWait(running)
            }
            Some(Err(LockError::Store(_))) | None
                if self.shared.config.on_store_error == OnStoreError::Closed =>
            {
                let _ = running.fail().await;
                self.retry_later()
            }
            // The store is down, or the user id is no valid key.
            failed => {
                if failed.is_none() {
                    let source = event.kind().as_str();
                    counter!(metric_names::LOCK_ACQUIRE, "status" => "open", "source_type" => source)
                        .increment(1);
                }
                tracing::warn!(event_type = %event.kind(), "no lock: handled without it");
                execute(running, None)
            }
        }
    }

    /// Takes the lock of a source, so that a retried event, or one of a gateway that was believed dead, runs
    /// beside no other of its source. Waits where another holds it.
    pub(super) async fn lock_source(
        &self,
        source: &str,
        events: usize,
        store_timeout: &SharedTimeout,
    ) -> SourceLock {
        let GatewayConfig { lease, handler_timeout, on_store_error, .. } = &self.shared.config;
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        let hold = LockConfig::default()
            .ttl(*lease)
            .wait(Duration::ZERO)
            .renew_for(Some(handler_timeout.saturating_mul(events)))
            .on_store_error(*on_store_error);
        let name = format!("{}:{source}", self.shared.queues[0].as_str());
        let locks = self.locks.clone().source("order");
        let first = store_timeout.run(locks.acquire(&name, &hold)).await;
        let answer = match first {
            Some(Err(LockError::Held { .. })) => {
                Some(locks.acquire(&name, &hold.wait(LOCK_WAIT)).await)
            }
            answer => answer,
        };
        match answer {
            Some(Ok(guard)) => SourceLock::Entered(Some(guard)),
            Some(Err(LockError::Held { .. })) => SourceLock::Busy,
            _ if *on_store_error == OnStoreError::Closed => SourceLock::Busy,
            _ => SourceLock::Entered(None),
        }
    }

    /// Waits for the lock of a retried event; `None` where the event must be retried later.
    pub(super) async fn wait_for_lock(
        &self,
        event: &ReceivedEvent,
        running: RunningCommand,
        lock: LockRequest,
    ) -> Option<Permit> {
        let hold = lock.hold.wait(LOCK_WAIT);
        match self.acquire(event, &lock.key, &hold).await {
            Ok(guard) => Some(Permit { running: Some(running), guard: Some(guard) }),
            Err(error) => {
                if !matches!(error, LockError::Held { .. }) {
                    tracing::warn!("no lock: the event is retried later");
                }
                let _ = running.fail().await;
                None
            }
        }
    }

    async fn acquire(
        &self,
        event: &ReceivedEvent,
        key: &str,
        hold: &LockConfig,
    ) -> Result<LockGuard, LockError> {
        self.locks.clone().source(event.kind().as_str()).acquire(key, hold).await
    }

    fn retry_later(&self) -> AdmissionDecision {
        AdmissionDecision::RetryLater(self.shared.config.backoff.initial())
    }

    fn hold(&self, rule: LockRule) -> Option<LockConfig> {
        let hold = LockConfig::default()
            .wait(Duration::ZERO)
            .renew_for(None)
            .on_store_error(self.shared.config.on_store_error);
        match rule {
            LockRule::None => None,
            LockRule::Mutex { ttl, renew } => {
                let renew_for = renew.then_some(self.shared.config.handler_timeout);
                Some(hold.ttl(ttl).renew_for(renew_for))
            }
            LockRule::Throttle { window } => Some(hold.ttl(window).throttle(true)),
        }
    }
}
