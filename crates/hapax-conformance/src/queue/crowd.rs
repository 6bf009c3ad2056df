//! Many holders at once: a witness writes down every hand-out, and objects.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::queue::{ItemId, ItemOutcome, LeasedItem, QueueItem};

use super::{Desk, Hand, ack, retry, uncounted_retry};
use crate::scene::{LONG, SHORT, Scene};
use crate::subject::laws;

laws![
    concurrent_workers_share_no_item_and_keep_key_order,
    items_of_lapsed_workers_are_done_by_others,
];

const KEYS: usize = 5;
const ITEMS: usize = 60;
const HOLDERS: usize = 8;

/// What the holders say: each one tells that it is about to let go before it does, so that nobody is
/// accused wrongly.
#[derive(Default)]
struct Witness {
    held: HashSet<ItemId>,
    done: HashSet<ItemId>,
    attempts: HashMap<ItemId, u32>,
}

impl Witness {
    fn handed_out(&mut self, items: &[QueueItem], leased: &[LeasedItem]) {
        let together: HashSet<_> = leased.iter().map(|leased| leased.item.id).collect();
        assert_eq!(together.len(), leased.len(), "twice in one hand");
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

    /// Decides what to do with a hand, and writes it down. A key whose item is retried gives back the
    /// rest of what was handed out of it.
    fn let_go(&mut self, hand: &Hand) -> Vec<(ItemId, ItemOutcome)> {
        let mut given_back = HashSet::new();
        let mut outcomes = Vec::new();
        for leased in &hand.items {
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

fn crowd(desk: &Desk) -> Vec<QueueItem> {
    let item = |i: usize| match i % (KEYS + 1) {
        0 => desk.item("t"),
        key => desk.item("t").key(&format!("k{key}")),
    };
    (0..ITEMS).map(item).collect()
}

async fn holder(
    desk: Desk,
    items: Arc<Vec<QueueItem>>,
    witness: Arc<Mutex<Witness>>,
    at_most: usize,
) {
    while witness.lock().unwrap().done.len() < ITEMS {
        let hand = desk.lease(at_most).await;
        if hand.items.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        witness.lock().unwrap().handed_out(&items, &hand.items);
        tokio::task::yield_now().await;
        let outcomes = witness.lock().unwrap().let_go(&hand);
        let answers = desk.resolve(&hand.token, &outcomes).await;
        assert!(answers.iter().all(|answer| *answer == hapax_core::queue::Resolved::Done));
    }
}

async fn concurrent_workers_share_no_item_and_keep_key_order(s: Scene) {
    let desk = Desk::new(s);
    let nodes = [desk.clone(), desk.reopened().await];
    let items = Arc::new(crowd(&desk));
    let witness = Arc::<Mutex<Witness>>::default();
    let holders: Vec<_> = (0..HOLDERS)
        .map(|i| {
            let node = nodes[i % 2].clone();
            tokio::spawn(holder(node, items.clone(), witness.clone(), 1 + i % 4))
        })
        .collect();
    for call in items.chunks(7) {
        desk.accepted(call).await;
    }
    let all = async {
        for holder in holders {
            holder.await.expect("no holder has anything to object to");
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all).await.expect("everything gets done");
    assert_eq!(desk.counts().await, (0, 0, 0));
}

/// Half of the holders vanish with what they hold; nothing is lost with them.
async fn items_of_lapsed_workers_are_done_by_others(s: Scene) {
    let desk = Desk::new(s);
    let items = crowd(&desk);
    desk.accepted(&items).await;
    let vanished: Vec<_> = (0..HOLDERS)
        .map(|_| {
            let desk = desk.clone();
            tokio::spawn(async move { desk.lease_for(3, SHORT).await })
        })
        .collect();
    for holder in vanished {
        holder.await.unwrap();
    }
    desk.s.outlive(SHORT).await;
    let mut done = Vec::new();
    while done.len() < ITEMS {
        let hand = desk.lease(10).await;
        assert!(!hand.items.is_empty(), "{} of {ITEMS} were found again", done.len());
        desk.finish(&hand).await;
        done.extend(hand.ids());
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
