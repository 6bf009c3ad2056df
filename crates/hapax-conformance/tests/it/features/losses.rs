//! Calls of logs and queues that are repeated after a lost request or reply have no further effect.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{Fault, FaultyStore, StoreWrapper, WrappedStore};
use hapax_core::command::{Begun, CommandConfig, CommandError, Commands};
use hapax_core::log::{Appended, LogEvent, LogRetention, PageRequest};
use hapax_core::memory::MemoryStore;
use hapax_core::queue::{Enqueued, LeaseRequest, QueueItem, QueueName, Resolved};
use hapax_core::{
    ClaimRequest, ClaimStep, Claimed, Claims, Fingerprint, Key, Log, Operation, Queue,
    RuntimeClock, Step, Store, StoreError, StoreResult, Tenant, Token,
};
use tokio::time::Instant;

const LOSSES: [Fault; 2] = [Fault::LostQuestion, Fault::LostAnswer];

fn faulty() -> FaultyStore {
    FaultyStore::new(Arc::new(MemoryStore::default()))
}

#[tokio::test]
async fn append_with_a_lost_reply_is_a_duplicate() {
    let store = faulty();
    let job = Key::job(&Tenant::default(), "scan", "1").unwrap();
    let events = [1, 2, 3].map(|seq| LogEvent {
        job: job.clone(),
        stage: "vision".into(),
        seq,
        fingerprint: Fingerprint::of(&[b"{}"]),
        payload: "{}".into(),
        closes: seq == 3,
    });
    store.plan(LOSSES);
    for _ in LOSSES {
        assert!(store.append(&events, &LogRetention::default()).await.is_err());
    }
    for (answer, offset) in
        store.append(&events, &LogRetention::default()).await.unwrap().iter().zip(1..)
    {
        assert!(matches!(answer, Appended::Duplicate(at) if at.offset == offset), "{answer:?}");
    }
    assert_eq!(
        store
            .attach(&job, &PageRequest::new(0, 10).with_state())
            .await
            .unwrap()
            .unwrap()
            .entries
            .len(),
        3
    );
}

/// Executes claims when it continues, as a server that stands still does with the requests in its sockets.
struct StandingStill {
    store: MemoryStore,
    until: Instant,
}

#[async_trait]
impl StoreWrapper for StandingStill {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        if Instant::now() >= self.until {
            return self.store.claim(key, ask).await;
        }
        let (store, until) = (self.store.clone(), self.until);
        let (key, ask) = (key.clone(), ask.clone());
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            store.claim(&key, &ask).await
        });
        Err(StoreError::Timeout { timeout: TIMEOUT })
    }

    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step> {
        if Instant::now() >= self.until {
            return self.store.step(key, token, step).await;
        }
        tokio::time::sleep(TIMEOUT).await;
        Err(StoreError::Timeout { timeout: TIMEOUT })
    }
}

const TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn fault_02_claim_is_undone_after_a_stall_longer_than_its_lease() {
    let store = MemoryStore::new(Arc::new(RuntimeClock::default()));
    let until = Instant::now() + Duration::from_secs(90);
    let commands = Commands::new(Arc::new(WrappedStore(StandingStill { store, until })));
    let config = CommandConfig::default().lease(Duration::from_secs(5));
    let begun = commands.begin(Operation("pay"), "k", &config).await;
    assert!(matches!(begun, Err(CommandError::Store(_))), "{begun:?}");
    tokio::time::sleep_until(until + Duration::from_secs(60)).await;
    let begun = commands.begin(Operation("pay"), "k", &config).await.unwrap();
    assert!(matches!(begun, Begun::Granted { .. }), "nothing ran: {begun:?}");
}

#[tokio::test]
async fn queue_steps_survive_lost_replies() {
    let store = faulty();
    let queue = QueueName::outbox();
    let item = QueueItem::new(&Tenant::default(), "t", "{}").key("k");
    store.plan(LOSSES);
    for _ in LOSSES {
        assert!(store.enqueue(&queue, std::slice::from_ref(&item)).await.is_err());
    }
    let again = store.enqueue(&queue, std::slice::from_ref(&item)).await.unwrap();
    assert_eq!(again, [Enqueued::Duplicate]);

    let take = LeaseRequest::new(10, Duration::from_secs(30));
    store.plan(LOSSES);
    for _ in LOSSES {
        assert!(store.lease(&queue, &take).await.is_err());
    }
    let leased = store.lease(&queue, &take).await.unwrap();
    assert_eq!((leased.len(), leased[0].attempt), (1, 1), "the same lease, not a second one");

    let retention = Duration::from_secs(3600);
    store.plan(LOSSES);
    for _ in LOSSES {
        assert!(store.ack(&queue, &take.token, &[item.id], retention).await.is_err());
    }
    let done = store.ack(&queue, &take.token, &[item.id], retention).await.unwrap();
    assert_eq!(done, [Resolved::Done]);
    assert_eq!(store.depth(&queue, None).await.unwrap().waiting, 0);
}
