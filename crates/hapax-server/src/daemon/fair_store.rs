//! A store at which tenants take turns, so that one that asks for much does not stand before the others.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax::log::{Appended, Attached, LogEvent, LogRetention, PageRequest, SeqSearch};
use hapax::wrapped_store::{StoreWrapper, WrappedStore};
use hapax::{
    ClaimRequest, ClaimView, Claimed, Deleted, Expect, Key, Put, Record, Store, StoreResult,
    with_timeout,
};

use super::turns::{Turn, Turns};

/// Passes on so many calls at once; further ones wait, each tenant's apart. The callers of a proxy are tenants, too.
///
/// A step of a claim does not wait: it ends something, which others may wait for, and there are only as many as claims were
/// granted.
struct FairCalls {
    store: Arc<dyn Store>,
    turns: Arc<Turns>,
    timeout: Duration,
}

/// A store with at most `calls_at_once`, whose turns are waited for as long as a call may take.
pub(crate) fn fair_store(
    store: Arc<dyn Store>,
    calls_at_once: usize,
    timeout: Duration,
) -> Arc<dyn Store> {
    Arc::new(WrappedStore(FairCalls { store, turns: Turns::new(calls_at_once), timeout }))
}

impl FairCalls {
    async fn turn(&self, key: &Key) -> StoreResult<Turn> {
        match self.turns.try_take() {
            Some(turn) => Ok(turn),
            None => {
                let turn = self.turns.take(key.tenant());
                with_timeout(self.timeout, async { Ok(turn.await) }).await
            }
        }
    }
}

#[async_trait]
impl StoreWrapper for FairCalls {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        let _turn = self.turn(key).await?;
        self.store.claim(key, ask).await
    }

    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        let _turn = self.turn(key).await?;
        self.store.look(key).await
    }

    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        let _turn = self.turn(key).await?;
        self.store.get(key).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let _turn = self.turn(key).await?;
        self.store.put(key, value, expect, ttl).await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let _turn = self.turn(key).await?;
        self.store.delete(key, expect).await
    }

    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>> {
        let _turn = match events.first() {
            Some(event) => Some(self.turn(&event.job).await?),
            None => None,
        };
        self.store.append(events, keep).await
    }

    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>> {
        let _turn = self.turn(job).await?;
        self.store.attach(job, page).await
    }

    async fn find_seq(&self, job: &Key, seq: u64) -> StoreResult<Option<SeqSearch>> {
        let _turn = self.turn(job).await?;
        self.store.find_seq(job, seq).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use hapax::memory::MemoryStore;
    use hapax::{Step, StoreError, Tenant};
    use hapax_conformance::{Fault, FaultyStore};
    use tokio::task::JoinSet;

    use super::*;

    const CALL: Duration = Duration::from_millis(10);

    /// A store whose calls take [`CALL`] each, with one call at once.
    fn one_at_once(timeout: Duration) -> Arc<dyn Store> {
        let slow = FaultyStore::new(Arc::new(MemoryStore::default()));
        slow.always(Some(Fault::Stall(CALL)));
        fair_store(Arc::new(slow), 1, timeout)
    }

    fn key(tenant: &str, name: usize) -> Key {
        Key::record(&Tenant::new(tenant).unwrap(), &name.to_string()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn flood_of_one_tenant_does_not_stand_before_another() {
        let store = one_at_once(Duration::from_secs(60));
        let order = Arc::<Mutex<Vec<&str>>>::default();
        let mut calls = JoinSet::new();
        for tenant in [["loud"; 50].as_slice(), &["quiet"]].concat() {
            let (store, order) = (store.clone(), order.clone());
            calls.spawn(async move {
                store.get(&key(tenant, 1)).await.unwrap();
                order.lock().unwrap().push(tenant);
            });
            tokio::task::yield_now().await;
        }
        calls.join_all().await;
        let order = order.lock().unwrap();
        let before = order.iter().position(|tenant| *tenant == "quiet").unwrap();
        // The one that is at the store, and the one whose turn is next.
        assert!(before <= 2, "{before} calls came before the quiet tenant's");
    }

    #[tokio::test(start_paused = true)]
    async fn call_waits_for_its_turn_no_longer_than_the_timeout() {
        let store = one_at_once(CALL * 9 / 2);
        let mut calls = JoinSet::new();
        for name in 0..20 {
            let store = store.clone();
            calls.spawn(async move { store.get(&key("loud", name)).await });
        }
        let ended = calls.join_all().await;
        let late = |one: &&StoreResult<_>| matches!(one, Err(StoreError::Timeout { .. }));
        assert_eq!(ended.iter().filter(late).count(), 15);
        assert_eq!(ended.iter().filter(|one| one.is_ok()).count(), 5);
        assert!(store.get(&key("loud", 0)).await.is_ok(), "a call that left has left no gap");
    }

    #[tokio::test(start_paused = true)]
    async fn step_of_a_claim_does_not_wait_for_a_turn() {
        let store = one_at_once(Duration::from_secs(60));
        let lock = Key::lock(&Tenant::default(), "k").unwrap();
        let ask = ClaimRequest::new(Duration::from_secs(5));
        store.claim(&lock, &ask).await.unwrap();
        let mut calls = JoinSet::new();
        for name in 0..20 {
            let store = store.clone();
            calls.spawn(async move { store.get(&key("loud", name)).await });
        }
        tokio::task::yield_now().await;
        let began = tokio::time::Instant::now();
        let step = store.extend(&lock, &ask.token, Duration::from_secs(5)).await.unwrap();
        assert!(matches!(step, Step::Done(_)), "{step:?}");
        assert_eq!(began.elapsed(), CALL);
    }
}
