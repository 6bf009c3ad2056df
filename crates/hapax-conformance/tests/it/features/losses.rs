//! Calls of logs and queues that are repeated after a lost request or reply have no further effect.

use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::{Fault, FaultyStore};
use hapax_core::log::{Appended, LogEvent, LogRetention, PageRequest};
use hapax_core::memory::MemoryStore;
use hapax_core::queue::{Enqueued, LeaseRequest, QueueItem, QueueName, Resolved};
use hapax_core::{Fingerprint, Key, Log, Queue, Tenant};

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
