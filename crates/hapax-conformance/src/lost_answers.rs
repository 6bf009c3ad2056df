//! Laws about writes whose answer was lost: whoever repeats them, the store itself or its driver, must not
//! undo what another node has written since. They need a [`LossyConnection`].

use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::{Enqueued, ItemId};
use hapax_core::{Deleted, Expect, Key, Put, Record, Store, StoreResult};

use crate::context::LawContext;
use crate::queue::{TestQueue, ack, bury};
use crate::suite::laws;

laws![
    put_with_a_lost_answer_keeps_a_later_put,
    put_of_an_absent_record_with_a_lost_answer_keeps_a_later_delete,
    delete_with_a_lost_answer_keeps_a_later_put,
    enqueue_with_a_lost_answer_adds_nothing_after_an_ack,
    requeue_with_a_lost_answer_keeps_a_later_burial,
];

/// The connection of a store to its server, under a test's control.
pub trait LossyConnection: Send + Sync {
    /// Holds back all answers from now on; requests still reach the server.
    fn hold_answers(&self);

    /// Cuts the connections whose answers were held back, and ends that: new connections work.
    fn lose_answers(&self);
}

/// A store, and the connection that it uses.
pub struct LossyStore {
    /// The store. No other one uses the connection.
    pub store: Arc<dyn Store>,
    /// The connection of the store.
    pub connection: Arc<dyn LossyConnection>,
}

/// Longer than a call takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Makes a call that is executed and whose answer is lost after `meanwhile`.
async fn lose_answer<T: Send + 'static>(
    connection: &dyn LossyConnection,
    call: impl Future<Output = StoreResult<T>> + Send + 'static,
    meanwhile: impl Future<Output = ()>,
) -> StoreResult<T> {
    connection.hold_answers();
    let call = tokio::spawn(call);
    meanwhile.await;
    connection.lose_answers();
    let answer = tokio::time::timeout(TIMEOUT, call).await.expect("the call ends in time");
    answer.expect("the call does not panic")
}

/// Waits until a call that another node makes has taken effect.
async fn until<F: Future<Output = bool>>(what: &str, is_effective: impl Fn() -> F) {
    let waiting = async {
        while !is_effective().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, waiting).await.is_ok(), "never seen: {what}");
}

impl LawContext {
    async fn record_at(&self, key: &Key) -> Option<Record> {
        self.store.get(key).await.expect("the store answers")
    }

    async fn write(&self, key: &Key, value: &'static str, expect: &Expect) {
        let put = self.store.put(key, value.into(), expect, None).await;
        assert!(matches!(put, Ok(Put::Stored { .. })), "{put:?}");
    }

    /// A node with a lossy connection that has written and deleted already: its first calls may load
    /// scripts or prepare statements.
    async fn lossy(&self) -> Option<LossyStore> {
        let lossy = self.subject.lossy().await?;
        let (store, key) = (&lossy.store, self.record("warm-up"));
        let _ = store.put(&key, "x".into(), &Expect::Any, None).await.expect("the store answers");
        let _ = store.delete(&key, &Expect::Any).await.expect("the store answers");
        Some(lossy)
    }
}

async fn put_with_a_lost_answer_keeps_a_later_put(s: LawContext) {
    let Some(LossyStore { store, connection }) = s.lossy().await else { return };
    let key = s.record("k");
    let call = {
        let key = key.clone();
        async move { store.put(&key, "first".into(), &Expect::Any, None).await }
    };
    let answer = lose_answer(&*connection, call, async {
        until("the first put", || async { s.record_at(&key).await.is_some() }).await;
        let first = s.record_at(&key).await.unwrap().version;
        s.write(&key, "second", &Expect::Version(first)).await;
    });
    // The first put happened, so that it may be reported; an error leaves it open.
    let answer = answer.await;
    assert!(matches!(answer, Err(_) | Ok(Put::Stored { created: true, .. })), "{answer:?}");
    assert_eq!(s.record_at(&key).await.unwrap().value, "second");
}

async fn put_of_an_absent_record_with_a_lost_answer_keeps_a_later_delete(s: LawContext) {
    let Some(LossyStore { store, connection }) = s.lossy().await else { return };
    let key = s.record("k");
    let call = {
        let key = key.clone();
        async move { store.put(&key, "first".into(), &Expect::Absent, None).await }
    };
    let answer = lose_answer(&*connection, call, async {
        until("the put", || async { s.record_at(&key).await.is_some() }).await;
        assert_eq!(s.store.delete(&key, &Expect::Any).await.unwrap(), Deleted::Done);
    });
    let answer = answer.await;
    assert!(matches!(answer, Err(_) | Ok(Put::Stored { created: true, .. })), "{answer:?}");
    assert_eq!(s.record_at(&key).await, None, "deleted, and resurrected by the repeated put");
}

async fn delete_with_a_lost_answer_keeps_a_later_put(s: LawContext) {
    let Some(LossyStore { store, connection }) = s.lossy().await else { return };
    let key = s.record("k");
    s.write(&key, "first", &Expect::Absent).await;
    let call = {
        let key = key.clone();
        async move { store.delete(&key, &Expect::Any).await }
    };
    let answer = lose_answer(&*connection, call, async {
        until("the delete", || async { s.record_at(&key).await.is_none() }).await;
        s.write(&key, "second", &Expect::Absent).await;
    });
    let answer = answer.await;
    assert!(matches!(answer, Err(_) | Ok(Deleted::Done)), "{answer:?}");
    assert_eq!(s.record_at(&key).await.unwrap().value, "second");
}

/// A queue on a node with a lossy connection that has been used already.
async fn lossy_queue(s: &LawContext) -> Option<(TestQueue, LossyStore)> {
    let lossy = s.lossy().await?;
    let warm_up = TestQueue::new(s.clone());
    let item = [warm_up.item("warm-up")];
    let _ = lossy.store.enqueue(&warm_up.name, &item).await.expect("the store answers");
    let requeued = lossy.store.requeue(&warm_up.name, None, item[0].id).await;
    assert!(!requeued.expect("the store answers"));
    Some((TestQueue::new(s.clone()), lossy))
}

async fn enqueue_with_a_lost_answer_adds_nothing_after_an_ack(s: LawContext) {
    let Some((queue, LossyStore { store, connection })) = lossy_queue(&s).await else { return };
    let call = {
        let (name, items) = (queue.name.clone(), [queue.item("a"), queue.item("b")]);
        async move { store.enqueue(&name, &items).await }
    };
    let answer = lose_answer(&*connection, call, async {
        until("the items", || async { queue.counts().await.0 == 2 }).await;
        let batch = queue.lease(2).await;
        for id in batch.ids() {
            queue.done(&batch, id, ack(Duration::ZERO)).await;
        }
    });
    let answer = answer.await;
    let is_truthful = answer.as_ref().ok().is_none_or(|a| *a == [Enqueued::Accepted; 2]);
    assert!(is_truthful, "{answer:?}");
    assert_eq!(queue.counts().await, (0, 0, 0), "handled, and added again by the repeated call");
}

async fn bury_next(queue: &TestQueue) {
    let batch = queue.lease(1).await;
    queue.done(&batch, batch.ids()[0], bury(true)).await;
}

async fn requeue_with_a_lost_answer_keeps_a_later_burial(s: LawContext) {
    let Some((queue, LossyStore { store, connection })) = lossy_queue(&s).await else { return };
    let id: ItemId = queue.accepted(&[queue.item("t")]).await[0];
    bury_next(&queue).await;
    let call = {
        let name = queue.name.clone();
        async move { store.requeue(&name, None, id).await }
    };
    let answer = lose_answer(&*connection, call, async {
        until("the requeued item", || async { queue.counts().await.0 == 1 }).await;
        bury_next(&queue).await;
    });
    let answer = answer.await;
    assert!(matches!(answer, Err(_) | Ok(true)), "{answer:?}");
    assert_eq!(queue.counts().await, (0, 0, 1), "buried again, and requeued by the repeated call");
}
