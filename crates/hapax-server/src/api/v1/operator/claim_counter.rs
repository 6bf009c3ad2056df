//! Counts claims in the background, for operators of a store that cannot count them itself (Redis).
//!
//! A count walks over all claims, page by page and with pauses. It is begun only when somebody asks, and its result is
//! kept: until it is a minute old, or longer where the walk took long.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax::{
    ClaimQuery, ClaimStatus, Clock, Key, KeyKind, OpenClaims, Store, StoreResult, SystemClock,
    Tenant,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::api::app::AppState;

/// How many stored keys one page examines, and how many pages one walk over the claims of a kind has.
const PAGE: u32 = 500;
const MAX_PAGES: usize = 2000;
/// How many times as long as a page took the walk pauses after it.
const PAUSES: u32 = 4;
/// The commands and locks that are told apart, because a scan may show a key twice.
const MAX_DISTINCT: usize = 100_000;
/// How old a count may be, and how old at least after an operator has changed something.
const MAX_AGE: Duration = Duration::from_secs(60);
const MAX_AGE_CHANGED: Duration = Duration::from_secs(2);
/// How many times as long as a walk took its result is kept at least.
const KEPT_TIMES: u32 = 10;
/// How long a call waits for a walk that it has begun.
const PATIENCE: Duration = Duration::from_millis(100);
/// A walk whose result nobody has asked for lately is given up.
const UNASKED: Duration = Duration::from_secs(300);
const KINDS: [KeyKind; 3] = [KeyKind::Command, KeyKind::Lock, KeyKind::Inbox];

/// The claims of a tenant and its scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CountedClaims {
    /// Locks, commands and messages.
    pub(crate) keys: u64,
    pub(crate) commands: OpenClaims,
    pub(crate) locks: OpenClaims,
    /// When they were counted, in milliseconds since 1970.
    pub(crate) as_of: u64,
    /// Whether there may be more, because not all keys were examined.
    pub(crate) is_partial: bool,
}

/// The last count of a tenant's claims.
pub(crate) struct ClaimCount {
    /// `None` if they could not be counted yet.
    pub(crate) found: Option<CountedClaims>,
    /// Whether a newer count is on its way.
    pub(crate) is_counting: bool,
}

/// The counts of this node's tenants, all of which the settings name.
#[derive(Default)]
pub(crate) struct ClaimCounter(Mutex<HashMap<Tenant, Arc<TenantCounter>>>);

struct TenantCounter {
    state: Mutex<CounterState>,
    walk_ended: Notify,
}

struct CounterState {
    asked: Instant,
    is_walking: bool,
    /// Whether an operator changed claims since the last walk began.
    is_changed: bool,
    /// The last result, or what the first walk has found so far.
    found: Option<CountedClaims>,
    /// When the last walk ended, and how long it took.
    ended: Option<(Instant, Duration)>,
}

impl CounterState {
    fn is_due(&self) -> bool {
        let Some((ended, took)) = self.ended else { return true };
        let kept = if self.is_changed { MAX_AGE_CHANGED } else { MAX_AGE };
        ended.elapsed() >= kept.max(took * KEPT_TIMES)
    }
}

impl TenantCounter {
    fn new() -> Self {
        let state = CounterState {
            asked: Instant::now(),
            is_walking: false,
            is_changed: false,
            found: None,
            ended: None,
        };
        Self { state: Mutex::new(state), walk_ended: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, CounterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClaimCounter {
    fn of(&self, tenant: &Tenant) -> Arc<TenantCounter> {
        let mut tenants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = tenants.entry(tenant.clone()).or_insert_with(|| TenantCounter::new().into());
        counter.clone()
    }

    /// Notes that an operator has changed claims, so that they are counted again soon.
    pub(crate) fn note_change(&self, tenant: &Tenant) {
        self.of(tenant).state().is_changed = true;
    }

    /// The last count. Begins another one if it is too old.
    pub(crate) async fn read(&self, app: &AppState, tenant: &Tenant) -> ClaimCount {
        let counter = self.of(tenant);
        let ended = counter.walk_ended.notified();
        let is_awaited = {
            let mut state = counter.state();
            state.asked = Instant::now();
            let is_awaited = state.is_changed || state.ended.is_none();
            if !state.is_walking && state.is_due() {
                (state.is_walking, state.is_changed) = (true, false);
                tokio::spawn(walk_in_background(app.clone(), tenant.clone(), counter.clone()));
            }
            is_awaited && state.is_walking
        };
        if is_awaited {
            let _ = timeout(PATIENCE, ended).await;
        }
        let state = counter.state();
        ClaimCount { found: state.found, is_counting: state.is_walking || state.is_changed }
    }
}

async fn walk_in_background(app: AppState, tenant: Tenant, counter: Arc<TenantCounter>) {
    let begun = Instant::now();
    let is_first = counter.state().ended.is_none();
    let walk = ClaimWalk { tenant, max_pages: MAX_PAGES, timeout: app.settings.store_timeout };
    let walked = walk.count(&*app.store, |so_far| {
        let mut state = counter.state();
        if is_first {
            state.found = Some(*so_far);
        }
        state.asked.elapsed() < UNASKED && !app.readiness.is_stopping()
    });
    let walked = walked.await;
    let mut state = counter.state();
    state.is_walking = false;
    // A walk that was given up is begun anew when somebody asks again.
    if !matches!(walked, Ok(None)) {
        state.ended = Some((Instant::now(), begun.elapsed()));
    }
    match walked {
        Ok(found) => state.found = found.or(state.found),
        // Its text may name the server, but never a key.
        Err(error) => tracing::debug!(reason = error.label(), "claims were not counted: {error}"),
    }
    drop(state);
    counter.walk_ended.notify_waiters();
}

/// One walk over the claims of a tenant.
struct ClaimWalk {
    tenant: Tenant,
    /// How many pages of each kind are read.
    max_pages: usize,
    /// The longest that one page may take.
    timeout: Duration,
}

impl ClaimWalk {
    /// Counts until the end, or until `goes_on`, which is told what was found so far, is false: then `None`.
    async fn count(
        &self,
        store: &dyn Store,
        mut goes_on: impl FnMut(&CountedClaims) -> bool,
    ) -> StoreResult<Option<CountedClaims>> {
        let mut found = CountedClaims { is_partial: true, ..CountedClaims::default() };
        let mut distinct = HashSet::new();
        let mut has_more = false;
        for kind in KINDS {
            let mut query = ClaimQuery {
                tenant: self.tenant.clone(),
                kind,
                status: None,
                scope: None,
                after: None,
                max_claims: PAGE,
            };
            for pages_left in (0..self.max_pages).rev() {
                let asked = Instant::now();
                let page = hapax::with_timeout(self.timeout, store.list(&query)).await?;
                for listed in &page.claims {
                    found.add(&listed.key, listed.status, &mut distinct);
                }
                found.as_of = SystemClock.now().0;
                if !goes_on(&found) {
                    return Ok(None);
                }
                let Some(next) = page.next else { break };
                has_more |= pages_left == 0;
                query.after = Some(next);
                sleep(asked.elapsed() * PAUSES).await;
            }
        }
        Ok(Some(CountedClaims { is_partial: has_more, ..found }))
    }
}

impl CountedClaims {
    fn add(&mut self, key: &Key, status: ClaimStatus, distinct: &mut HashSet<u64>) {
        let is_known = distinct.contains(&key.digest());
        if is_known {
            return;
        }
        if status != ClaimStatus::Settled && distinct.len() < MAX_DISTINCT {
            distinct.insert(key.digest());
        }
        self.keys += 1;
        match key.kind() {
            KeyKind::Command => self.commands.add(status, 1),
            KeyKind::Lock => self.locks.add(status, 1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use hapax::memory::MemoryStore;
    use hapax::{ClaimRequest, Operation};

    use super::*;

    async fn claim(store: &MemoryStore, key: &Key) {
        use hapax::Claims;
        let ask = ClaimRequest::new(Duration::from_secs(60)).retention(Duration::from_secs(60));
        store.claim(key, &ask).await.unwrap();
    }

    async fn filled(commands: usize) -> MemoryStore {
        let (store, tenant) = (MemoryStore::default(), Tenant::default());
        for number in 0..commands {
            let key = Key::command(&tenant, Operation("pay"), &number.to_string()).unwrap();
            claim(&store, &key).await;
        }
        claim(&store, &Key::lock(&tenant, "l").unwrap()).await;
        claim(&store, &Key::lock(&Tenant::new("other").unwrap(), "l").unwrap()).await;
        store
    }

    fn walk(max_pages: usize) -> ClaimWalk {
        ClaimWalk { tenant: Tenant::default(), max_pages, timeout: Duration::from_secs(20) }
    }

    #[tokio::test]
    async fn claim_walk_counts_the_claims_of_its_tenant() {
        let store = filled(1200).await;
        let mut pages = 0;
        let walk = walk(MAX_PAGES);
        let found = walk.count(&store, |so_far| {
            pages += 1;
            so_far.is_partial
        });
        let found = found.await.unwrap().unwrap();
        assert_eq!((found.commands.pending, found.locks.pending, found.keys), (1200, 1, 1201));
        assert!(!found.is_partial && found.as_of > 0);
        assert!(pages >= 3, "{pages}");
    }

    #[tokio::test]
    async fn claim_walk_that_does_not_see_all_says_so() {
        let store = filled(1200).await;
        let found = walk(2).count(&store, |_| true).await.unwrap().unwrap();
        assert!(found.is_partial && found.commands.pending < 1200, "{found:?}");
        assert_eq!(walk(MAX_PAGES).count(&store, |_| false).await.unwrap(), None, "given up");
    }

    #[test]
    fn counted_claims_know_a_key_that_a_scan_shows_twice() {
        let (mut found, mut distinct) = (CountedClaims::default(), HashSet::new());
        let key = Key::command(&Tenant::default(), Operation("pay"), "k").unwrap();
        for _ in 0..2 {
            found.add(&key, ClaimStatus::Unknown, &mut distinct);
        }
        assert_eq!((found.keys, found.commands.unknown), (1, 1));
    }
}
