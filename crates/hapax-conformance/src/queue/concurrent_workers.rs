//! Many concurrent workers: a tracker checks every lease.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::queue::{ItemId, ItemOutcome, LeasedItem, QueueItem};

use super::{LeasedTestItems, TestQueue, ack, retry, uncounted_retry};
use crate::context::{LONG, SHORT, concurrently};
use crate::suite::laws;

laws![
    TestQueue::new;
    concurrent_workers_share_no_item_and_keep_key_order,
    items_of_lapsed_workers_are_done_by_others,
];

const KEYS: usize = 5;
const ITEMS: usize = 60;
const WORKERS: usize = 8;

/// The state of all items as the workers report it. A worker reports an outcome before it resolves
/// the item, so that no later lease is taken for a fault.
#[derive(Default)]
struct LeaseTracker {
    held: HashSet<ItemId>,
    done: HashSet<ItemId>,
    attempts: HashMap<ItemId, u32>,
}

impl LeaseTracker {
    fn check_leased(&mut self, items: &[QueueItem], leased: &[LeasedItem]) {
        let together: HashSet<_> = leased.iter().map(|leased| leased.item.id).collect();
        assert_eq!(together.len(), leased.len(), "twice in one batch");
        for (place, one) in leased.iter().enumerate() {
            let id = one.item.id;
            assert!(!self.done.contains(&id), "handed out after it was done");
            assert!(self.held.insert(id), "handed out to two");
            let attempt = self.attempts.entry(id).or_default();
            *attempt += 1;
            assert_eq!(one.attempt, *attempt);
            let Some(key) = &one.item.key else { continue };
            let earlier = items.iter().take_while(|item| item.id != id);
            for item in earlier.filter(|item| item.key.as_ref() == Some(key)) {
                let before = leased[..place].iter().any(|leased| leased.item.id == item.id);
                assert!(before || self.done.contains(&item.id), "before an earlier one of its key");
            }
        }
    }

    /// Chooses and records the outcomes of a batch. If an item is retried, the batch's later items
    /// of its key are given back.
    fn choose_outcomes(&mut self, batch: &LeasedTestItems) -> Vec<(ItemId, ItemOutcome)> {
        let mut given_back = HashSet::new();
        let mut outcomes = Vec::new();
        for leased in &batch.items {
            let id = leased.item.id;
            self.held.remove(&id);
            let key = leased.item.key.clone();
            let outcome = if key.as_ref().is_some_and(|key| given_back.contains(key)) {
                *self.attempts.get_mut(&id).unwrap() -= 1;
                uncounted_retry(Duration::ZERO)
            } else if leased.attempt < 3 && id.0.as_u128() % 3 == 0 {
                given_back.extend(key);
                retry(Duration::ZERO)
            } else {
                self.done.insert(id);
                ack(LONG)
            };
            outcomes.push((id, outcome));
        }
        outcomes
    }
}

fn make_items(queue: &TestQueue) -> Vec<QueueItem> {
    let item = |i: usize| match i % (KEYS + 1) {
        0 => queue.item("t"),
        key => queue.item("t").key(&format!("k{key}")),
    };
    (0..ITEMS).map(item).collect()
}

async fn worker(
    queue: TestQueue,
    items: Arc<Vec<QueueItem>>,
    tracker: Arc<Mutex<LeaseTracker>>,
    at_most: usize,
) {
    while tracker.lock().unwrap().done.len() < ITEMS {
        let batch = queue.lease(at_most).await;
        if batch.items.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        tracker.lock().unwrap().check_leased(&items, &batch.items);
        tokio::task::yield_now().await;
        let outcomes = tracker.lock().unwrap().choose_outcomes(&batch);
        let answers = queue.resolve(&batch.token, &outcomes).await;
        assert!(answers.iter().all(|answer| *answer == hapax_core::queue::Resolved::Done));
    }
}

async fn concurrent_workers_share_no_item_and_keep_key_order(queue: TestQueue) {
    let nodes = [queue.clone(), queue.reopened().await];
    let items = Arc::new(make_items(&queue));
    let tracker = Arc::<Mutex<LeaseTracker>>::default();
    let workers: Vec<_> = (0..WORKERS)
        .map(|i| {
            let node = nodes[i % 2].clone();
            tokio::spawn(worker(node, items.clone(), tracker.clone(), 1 + i % 4))
        })
        .collect();
    for call in items.chunks(7) {
        queue.accepted(call).await;
    }
    let all = async {
        for worker in workers {
            worker.await.expect("no worker has anything to object to");
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all).await.expect("everything gets done");
    assert_eq!(queue.counts().await, (0, 0, 0));
}

/// Some workers vanish without resolving their items, and other workers do the work.
async fn items_of_lapsed_workers_are_done_by_others(queue: TestQueue) {
    let items = make_items(&queue);
    queue.accepted(&items).await;
    concurrently((0..WORKERS).map(|_| {
        let queue = queue.clone();
        async move { queue.lease_for(3, SHORT).await }
    }))
    .await;
    queue.context.outlive(SHORT).await;
    let mut done = Vec::new();
    while done.len() < ITEMS {
        let batch = queue.lease(10).await;
        assert!(!batch.items.is_empty(), "{} of {ITEMS} were found again", done.len());
        queue.finish(&batch).await;
        done.extend(batch.ids());
    }
    for key in 1..=KEYS {
        let of_key = |id: &ItemId| {
            let item = items.iter().find(|item| item.id == *id).unwrap();
            item.key.as_deref() == Some(&*format!("k{key}"))
        };
        let order: Vec<_> = items.iter().map(|item| item.id).filter(of_key).collect();
        assert_eq!(done.iter().copied().filter(of_key).collect::<Vec<_>>(), order);
    }
}
