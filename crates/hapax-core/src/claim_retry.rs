//! Operations on claims that take more than one store call: waiting for a busy claim, renewing a
//! lease, and undoing a claim whose answer was lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::activity::{self, Activity};
use crate::{
    ClaimRequest, ClaimStep, Claimed, Claims, GiveBack, Key, OnUnknown, Step, StoreError,
    StoreResult, Token, deadline_after, metric_names,
};

/// The longest pause between two polls of a waiter: a hint between nodes may be lost.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The shortest pause between two polls without a hint, also if a store cannot tell the lease.
const LOOK_SOONEST: Duration = Duration::from_millis(10);
/// The lease with which a claim becomes unknown at once.
const SHORTEST_LEASE: Duration = Duration::from_millis(1);

/// The answer of [`claim`].
pub(crate) struct ClaimAnswer {
    pub(crate) claimed: Claimed,
    /// The time before the call that was answered: a granted lease is counted from it, so that it never lasts longer
    /// here than in the store.
    pub(crate) asked_at: Instant,
    /// Whether the key was busy at first.
    pub(crate) waited: bool,
}

/// Claims a key, and waits up to `wait` if it is busy. No resource is held between two polls.
///
/// A claim whose answer does not arrive may have been granted without the caller's knowledge. After
/// a lost connection the claim is repeated once with the same token, which yields the same grant.
/// If that fails too, or if the caller drops this future before the answer, the claim is given back
/// in the background, so that the key does not become *unknown* although nothing ran. A claim that may
/// have taken over an unknown outcome makes it unknown again: kept as failed, the next caller would
/// run although the first owner may have acted.
pub(crate) async fn claim(
    store: &Arc<dyn Claims>,
    key: &Key,
    ask: &ClaimRequest,
    wait: Duration,
    undo: GiveBack,
) -> StoreResult<ClaimAnswer> {
    let deadline = deadline_after(Instant::now(), wait);
    let undo = match (ask.on_unknown, undo) {
        (OnUnknown::TakeOver, GiveBack::Keep) => ClaimStep::Extend(SHORTEST_LEASE),
        _ => ClaimStep::GiveBack(undo),
    };
    let mut watch = None;
    loop {
        let asked_at = Instant::now();
        let unheard = UndoOnDrop { store, key, token: &ask.token, undo: &undo };
        let answer = retry_once_on_disconnect(|| store.claim(key, ask)).await;
        match &answer {
            Err(error) if error.is_transient() => drop(unheard),
            _ => unheard.heard(),
        }
        let lease_left = match answer {
            Ok(Claimed::Busy { lease_left }) => lease_left,
            Ok(claimed) => return Ok(ClaimAnswer { claimed, asked_at, waited: watch.is_some() }),
            Err(error) => {
                metric_names::count_store_error(&error);
                return Err(error);
            }
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let claimed = Claimed::Busy { lease_left };
            return Ok(ClaimAnswer { claimed, asked_at, waited: watch.is_some() });
        }
        // After the first claim only register and claim again, so that no hint between claim and
        // wait is missed.
        match &mut watch {
            None => watch = Some(store.watch(key)),
            Some(watch) => {
                let pause = lease_left.clamp(LOOK_SOONEST, LOOK_AGAIN).min(left);
                watch.changed(pause).await;
            }
        }
    }
}

/// Repeats a call once if the connection was lost. Only for calls that are safe to repeat with the
/// same token.
pub(crate) async fn retry_once_on_disconnect<T, F>(call: impl Fn() -> F) -> StoreResult<T>
where
    F: Future<Output = StoreResult<T>>,
{
    match call().await {
        Err(StoreError::Unavailable { .. }) => call().await,
        answer => answer,
    }
}

/// Turns the answer to a settle or give-back into a result, and counts it: under the label
/// given as `success`, or under "lost" or "error".
pub(crate) fn count_step<E: From<StoreError>>(
    answer: StoreResult<Step>,
    success: &'static str,
    lost: E,
    count: impl FnOnce(&'static str),
) -> Result<(), E> {
    let (label, result) = match answer {
        Ok(Step::Done(_)) => (success, Ok(())),
        Ok(Step::Lost) => ("lost", Err(lost)),
        Err(error) => {
            metric_names::count_store_error(&error);
            ("error", Err(error.into()))
        }
    };
    count(label);
    result
}

/// A claim, or a step of one, whose answer has not arrived. Dropping this guard undoes the claim in
/// the background; [`UndoOnDrop::heard`] disarms it.
pub(crate) struct UndoOnDrop<'a> {
    pub(crate) store: &'a Arc<dyn Claims>,
    pub(crate) key: &'a Key,
    pub(crate) token: &'a Token,
    pub(crate) undo: &'a ClaimStep,
}

impl UndoOnDrop<'_> {
    pub(crate) fn heard(self) {
        std::mem::forget(self);
    }
}

impl Drop for UndoOnDrop<'_> {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (store, key, token) =
                (Arc::clone(self.store), self.key.clone(), self.token.clone());
            runtime.spawn(undo(store, key, token, self.undo.clone()));
        }
    }
}

/// How many claims are undone at once; beyond that each is given back only once, so that the
/// claims of a long outage do not pile up.
static UNDOING: Semaphore = Semaphore::const_new(4096);
/// How long an error is retried: as long as a store may stand still and then execute the claim.
const UNDO_ERRORS: Duration = Duration::from_secs(600);
/// How long a store that answers is asked again whether the claim has reached it.
const UNDO_LOST: Duration = Duration::from_secs(5);

/// Gives back a claim that may have been granted although its answer was lost.
///
/// A store that stands still executes the claim when it continues, which may be long after the
/// lease: the claim would be *unknown* although nothing ran. So errors are retried whatever the
/// lease. The claim may also reach the store after the give-back, so [`Step::Lost`] is retried too,
/// counted from the first one after the last error.
async fn undo(store: Arc<dyn Claims>, key: Key, token: Token, how: ClaimStep) {
    let permit = UNDOING.try_acquire();
    let (start, mut lost_since) = (Instant::now(), None);
    let mut pause = Duration::from_millis(50);
    loop {
        let gives_up = match store.step(&key, &token, how.clone()).await {
            Ok(Step::Done(_)) => return,
            Ok(Step::Lost) => lost_since.get_or_insert_with(Instant::now).elapsed() >= UNDO_LOST,
            Err(_) => {
                lost_since = None;
                start.elapsed() >= UNDO_ERRORS
            }
        };
        if gives_up || permit.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Runs an effect and extends its claim meanwhile. An effect cannot be undone, so it runs to its
/// end even if the claim is lost; the settle then shows whether the caller is still the owner.
pub(crate) async fn run_while_renewing<T>(
    store: &dyn Claims,
    key: &Key,
    token: &Token,
    lease: Duration,
    effect: impl Future<Output = T>,
) -> T {
    let renewal = async {
        let since = Instant::now();
        renew_until_lost(store, key, token, lease, since, None, RecordRenewals::Yes).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = effect => result,
        () = renewal => unreachable!("the renewal never ends"),
    }
}

/// Whether renewals are part of the recorded activity: not those of a consumer group's partitions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordRenewals {
    Yes,
    No,
}

/// Extends a claim every third of its lease until `until`. Returns when the claim is lost, or when
/// its lease may have ended. `since` is the time at which the lease was requested.
pub(crate) async fn renew_until_lost(
    store: &dyn Claims,
    key: &Key,
    token: &Token,
    lease: Duration,
    since: Instant,
    until: Option<Instant>,
    record: RecordRenewals,
) {
    let mut alive_until = deadline_after(since, lease);
    let mut next = deadline_after(since, lease / 3);
    while next < alive_until && until.is_none_or(|until| next < until) {
        tokio::time::sleep_until(next).await;
        let asked_at = Instant::now();
        match tokio::time::timeout_at(alive_until, store.extend(key, token, lease)).await {
            Ok(Ok(Step::Done(_))) => {
                alive_until = deadline_after(asked_at, lease);
                if record == RecordRenewals::Yes {
                    activity::record(Activity::Renewed(key));
                }
            }
            Ok(Ok(Step::Lost)) => return,
            Ok(Err(error)) => metric_names::count_store_error(&error),
            Err(_) => return,
        }
        next = deadline_after(asked_at, lease / 3);
    }
    tokio::time::sleep_until(alive_until).await;
}
