//! The relay when it cannot keep a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{
    Script, Working, brisk, depth, drained, enqueue, in_virtual_time, item, until,
};
use async_trait::async_trait;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::*;
use hapax_core::{Queue, StoreError, Tenant, Token};
use tokio::sync::Semaphore;

/// A store on which some calls, or their answers, are lost.
struct Deaf {
    store: MemoryStore,
    no_renewals: bool,
    lost_leases: AtomicUsize,
    no_outcomes: AtomicBool,
}

fn unheard<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable { reason: "cut".into(), source: None })
}

#[async_trait]
impl Queue for Deaf {
    async fn enqueue(
        &self,
        q: &QueueName,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError> {
        self.store.enqueue(q, items).await
    }
    async fn lease(
        &self,
        q: &QueueName,
        take: &LeaseRequest,
    ) -> Result<Vec<LeasedItem>, StoreError> {
        let leased = self.store.lease(q, take).await;
        let lost = |n: usize| n.checked_sub(1);
        let left = self.lost_leases.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lost);
        if left.is_ok() { unheard() } else { leased }
    }
    async fn renew(&self, q: &QueueName, t: &Token, l: Duration) -> Result<u64, StoreError> {
        if self.no_renewals { unheard() } else { self.store.renew(q, t, l).await }
    }
    async fn resolve(
        &self,
        q: &QueueName,
        t: &Token,
        o: &[(ItemId, ItemOutcome)],
    ) -> Result<Vec<Resolved>, StoreError> {
        if self.no_outcomes.load(Ordering::SeqCst) {
            unheard()
        } else {
            self.store.resolve(q, t, o).await
        }
    }
    async fn depth(&self, q: &QueueName, whose: Option<&Tenant>) -> Result<QueueDepth, StoreError> {
        self.store.depth(q, whose).await
    }
    async fn dead(
        &self,
        q: &QueueName,
        whose: Option<&Tenant>,
        after: Option<ItemId>,
        at_most: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.store.dead(q, whose, after, at_most).await
    }
    async fn requeue(
        &self,
        q: &QueueName,
        w: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.store.requeue(q, w, id).await
    }
    async fn discard(
        &self,
        q: &QueueName,
        w: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.store.discard(q, w, id).await
    }
}

fn deaf() -> Deaf {
    Deaf {
        store: in_virtual_time(),
        no_renewals: false,
        lost_leases: AtomicUsize::new(0),
        no_outcomes: AtomicBool::new(false),
    }
}

/// A sink that delivers one message for each permit of `door`.
fn behind(door: &Arc<Semaphore>) -> Arc<Script> {
    let door = door.clone();
    Arc::new(Script::new(move |_| {
        let door = door.clone();
        async move {
            door.acquire().await.unwrap().forget();
            Ok(())
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_a_send_takes_long() {
    let store = Arc::new(deaf());
    enqueue(&*store, &[item("1").key("k")]).await;
    let door = Arc::new(Semaphore::new(0));
    let sink = behind(&door);
    let lease = Duration::from_millis(600);
    let settings = brisk().lease(lease);
    let relays: Vec<_> =
        (0..2).map(|_| Working::start(store.clone(), sink.clone(), settings.clone())).collect();
    until("it is in the air", async || sink.begun().len() == 1).await;
    // Wait for longer than a lease, so that it must be renewed.
    tokio::time::sleep(lease * 3).await;
    door.add_permits(1);
    drained(&*store).await;
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(sink.begun().len(), 1, "nobody else got it");
}

#[tokio::test(start_paused = true)]
async fn a_relay_whose_lease_is_gone_sends_nothing_more_of_it() {
    let store = Arc::new(Deaf { no_renewals: true, ..deaf() });
    enqueue(&*store, &["1", "2"].map(|name| item(name).key("k"))).await;
    let door = Arc::new(Semaphore::new(0));
    let slow = behind(&door);
    let settings = brisk().lease(Duration::from_millis(80));
    let first = Working::start(store.clone(), slow.clone(), settings.clone());
    until("the first has it", async || slow.begun().len() == 1).await;
    let sink = Arc::new(Script::takes_all());
    let second = Working::start(store.clone(), sink.clone(), settings);
    until("the second delivers", async || sink.payloads() == ["1", "2"]).await;
    drained(&*store).await;
    door.add_permits(9);
    until("the first lands late", async || !slow.delivered().is_empty()).await;
    first.stop().await;
    second.stop().await;
    // The first relay may have leased `1` once more, before the second relay did.
    let sent = slow.payloads();
    assert!(sent.iter().all(|sent| sent == "1"), "`2` was another's by then: {sent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_answer_was_lost_is_asked_for_again() {
    let store = Arc::new(Deaf { lost_leases: AtomicUsize::new(2), ..deaf() });
    enqueue(&*store, &[item("1"), item("2")]).await;
    let sink = Arc::new(Script::takes_all());
    // With a new token, the relay would get the rows only after this lease of an hour.
    let settings = brisk().lease(Duration::from_secs(3600));
    let relay = Working::start(store.clone(), sink.clone(), settings);
    drained(&*store).await;
    relay.stop().await;
    assert_eq!(sink.delivered().len(), 2);
    assert!(sink.delivered().iter().all(|call| call.attempt == 1));
}

#[tokio::test(start_paused = true)]
async fn what_the_store_did_not_hear_is_told_again() {
    let store = Arc::new(deaf());
    store.no_outcomes.store(true, Ordering::SeqCst);
    enqueue(&*store, &[item("1")]).await;
    let sink = Arc::new(Script::takes_all());
    let relay = Working::start(store.clone(), sink.clone(), brisk());
    until("it is delivered", async || sink.delivered().len() == 1).await;
    assert_eq!(depth(&*store).await.in_flight, 1);
    store.no_outcomes.store(false, Ordering::SeqCst);
    drained(&*store).await;
    relay.stop().await;
    assert_eq!(sink.begun().len(), 1, "it was not sent again");
}
