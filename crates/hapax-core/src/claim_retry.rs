//! What the features do with claims beyond one call: wait for one, keep one alive, undo one whose
//! answer was lost.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::{ClaimRequest, Claimed, Claims, GiveBack, Key, Step, StoreError, Token, metric_names};

/// Who waits looks by itself at least this often: a hint between nodes may be lost.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// … and never more often than this without a hint, also where a store cannot tell the lease.
const LOOK_SOONEST: Duration = Duration::from_millis(10);

/// Claims, and where it is busy waits for it up to `wait`. Between two looks nothing is held. With
/// the answer comes the moment at which it was asked for: a lease that was granted is counted from
/// there, so that we never believe in it longer than the store does.
///
/// A claim whose answer does not arrive may have been granted, and nobody would know. Where the
/// connection was lost it is asked once more with the same token, which recognises itself; where
/// that fails too, or the caller goes away in the middle, it is undone in the background, so that
/// the key does not become *unknown* although nothing ran.
pub(crate) async fn claim(
    store: &Arc<dyn Claims>,
    key: &Key,
    ask: &ClaimRequest,
    wait: Duration,
    undo: GiveBack,
) -> Result<(Claimed, Instant), StoreError> {
    let deadline = Instant::now() + wait;
    let mut watch = None;
    loop {
        let asked_at = Instant::now();
        let unheard = UndoOnDrop { store, key, ask, undo };
        let answer = retry_once_on_disconnect(|| store.claim(key, ask)).await;
        match &answer {
            Err(error) if error.is_transient() => drop(unheard),
            _ => unheard.heard(),
        }
        let lease_left = match answer {
            Ok(Claimed::Busy { lease_left }) => lease_left,
            Ok(answer) => return Ok((answer, asked_at)),
            Err(error) => {
                metric_names::count_store_error(&error);
                return Err(error);
            }
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok((Claimed::Busy { lease_left }, asked_at));
        }
        // The first time round only registers, so that nothing between claim and wait is missed.
        match &mut watch {
            None => watch = Some(store.watch(key)),
            Some(watch) => {
                let pause = lease_left.clamp(LOOK_SOONEST, LOOK_AGAIN).min(left);
                watch.changed(pause).await;
            }
        }
    }
}

/// Asks once more where the connection was lost on the way; only for steps that recognise themselves.
pub(crate) async fn retry_once_on_disconnect<T, F>(call: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    match call().await {
        Err(StoreError::Unavailable { .. }) => call().await,
        answer => answer,
    }
}

/// A claim whose answer was not heard yet. Dropped like that, it is undone.
struct UndoOnDrop<'a> {
    store: &'a Arc<dyn Claims>,
    key: &'a Key,
    ask: &'a ClaimRequest,
    undo: GiveBack,
}

impl UndoOnDrop<'_> {
    fn heard(self) {
        std::mem::forget(self);
    }
}

impl Drop for UndoOnDrop<'_> {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (store, key, token) =
                (Arc::clone(self.store), self.key.clone(), self.ask.token.clone());
            runtime.spawn(undo(store, key, token, self.undo, self.ask.lease));
        }
    }
}

/// Gives back what may have been granted without anybody hearing of it. The claim may still be on
/// its way when this starts, so a *lost* is believed only after a while; a store that does not
/// answer is asked while the lease may last, at most a minute. After that the lease decides.
async fn undo(store: Arc<dyn Claims>, key: Key, token: Token, how: GiveBack, lease: Duration) {
    let start = Instant::now();
    let mut pause = Duration::from_millis(50);
    loop {
        let patience = match store.give_back(&key, &token, how).await {
            Ok(Step::Done(_)) => return,
            Ok(Step::Lost) => Duration::from_secs(5),
            Err(_) => Duration::from_secs(60),
        };
        if start.elapsed() >= patience.min(lease) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

/// Runs an effect while its claim is extended. The effect cannot be taken back: it runs to its end
/// also where the claim was lost, and the settle will tell who was first.
pub(crate) async fn run_while_renewing<T>(
    store: &dyn Claims,
    key: &Key,
    token: &Token,
    lease: Duration,
    effect: impl Future<Output = T>,
) -> T {
    let keeping = async {
        renew_until_lost(store, key, token, lease, Instant::now(), None).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = effect => result,
        () = keeping => unreachable!("it never ends"),
    }
}

/// Extends a claim every third of its lease, for as long as it is ours and `until` has not come;
/// returns when it is lost, or could be. `since` is when the lease was asked for.
pub(crate) async fn renew_until_lost(
    store: &dyn Claims,
    key: &Key,
    token: &Token,
    lease: Duration,
    since: Instant,
    until: Option<Instant>,
) {
    let mut alive_until = since + lease;
    let mut next = since + lease / 3;
    while next < alive_until && until.is_none_or(|until| next < until) {
        tokio::time::sleep_until(next).await;
        let asked_at = Instant::now();
        match tokio::time::timeout_at(alive_until, store.extend(key, token, lease)).await {
            Ok(Ok(Step::Done(_))) => alive_until = asked_at + lease,
            Ok(Ok(Step::Lost)) => return,
            Ok(Err(error)) => metric_names::count_store_error(&error),
            Err(_) => return,
        }
        next = asked_at + lease / 3;
    }
    tokio::time::sleep_until(alive_until).await;
}
