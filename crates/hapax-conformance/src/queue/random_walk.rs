//! A long random walk over several nodes: leases of all lengths, late steps, retries, burials, and
//! an operator's decisions.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use hapax_core::queue::{ItemId, ItemOutcome, QueueItem, Resolved};

use super::{LeasedTestItems, TestQueue, ack, bury, retry, uncounted_retry};
use crate::context::{LONG, SHORT};
use crate::suite::laws;

laws![TestQueue::new; random_walk_keeps_key_order_and_loses_nothing];

const STEPS: u64 = 400;
const KEYS: u64 = 4;

/// Yields the same numbers in every run, so that a failure is reproducible.
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

#[derive(Default)]
struct WalkState {
    /// All items, in the order of enqueueing.
    items: Vec<QueueItem>,
    gone: HashSet<ItemId>,
    /// Dead items, and whether they block their key.
    dead: HashMap<ItemId, bool>,
    batches: Vec<LeasedTestItems>,
}

impl WalkState {
    fn check_leased(&mut self, batch: LeasedTestItems) {
        for (place, leased) in batch.items.iter().enumerate() {
            let id = leased.item.id;
            assert!(!self.gone.contains(&id) && !self.dead.contains_key(&id), "it had its end");
            let earlier = self.items.iter().take_while(|item| item.id != id);
            for item in earlier.filter(|item| item.key.is_some() && item.key == leased.item.key) {
                let out_of_the_way = self.gone.contains(&item.id)
                    || self.dead.get(&item.id) == Some(&false)
                    || batch.items[..place].iter().any(|before| before.item.id == item.id);
                assert!(out_of_the_way, "before an earlier one of its key");
            }
        }
        if !batch.items.is_empty() {
            self.batches.push(batch);
        }
    }

    fn resolved(&mut self, id: ItemId, outcome: &ItemOutcome) {
        match outcome {
            ItemOutcome::Ack { .. } => drop(self.gone.insert(id)),
            ItemOutcome::Bury { blocks, .. } => drop(self.dead.insert(id, *blocks)),
            ItemOutcome::Retry { .. } => {}
        }
    }
}

fn outcome(rng: &mut SeededRng) -> ItemOutcome {
    match rng.below(8) {
        0 => retry(Duration::ZERO),
        1 => retry(SHORT),
        2 => uncounted_retry(Duration::ZERO),
        3 => bury(rng.below(2) == 0),
        _ => ack(LONG),
    }
}

async fn enqueue(queue: &TestQueue, walk: &mut WalkState, rng: &mut SeededRng) {
    let new: Vec<_> = (0..=rng.below(4))
        .map(|_| {
            let item =
                if rng.below(5) == 0 { queue.item("t").delay(SHORT) } else { queue.item("t") };
            match rng.below(KEYS + 1) {
                0 => item,
                key => item.key(&format!("k{key}")),
            }
        })
        .collect();
    queue.accepted(&new).await;
    walk.items.extend(new);
}

/// Resolves some items of a random batch, whose lease may have lapsed.
async fn resolve(queue: &TestQueue, walk: &mut WalkState, rng: &mut SeededRng) {
    if walk.batches.is_empty() {
        return;
    }
    let which = usize::try_from(rng.below(walk.batches.len() as u64)).unwrap();
    let mut batch = walk.batches.swap_remove(which);
    let mut outcomes: Vec<_> = batch.ids().into_iter().map(|id| (id, outcome(rng))).collect();
    if rng.below(3) == 0 && outcomes.len() > 1 {
        outcomes.truncate(1);
    }
    let answers = queue.resolve(&batch.token, &outcomes).await;
    for ((id, outcome), answer) in outcomes.iter().zip(answers) {
        if answer == Resolved::Done {
            walk.resolved(*id, outcome);
        }
    }
    batch.items.drain(..outcomes.len());
    if !batch.items.is_empty() {
        walk.batches.push(batch);
    }
}

async fn resolve_dead(queue: &TestQueue, walk: &mut WalkState, requeues: bool) {
    let Some(id) = walk.dead.keys().copied().min() else { return };
    let (store, queue) = (&queue.context.store, &queue.name);
    let found = match requeues {
        true => store.requeue(queue, None, id).await,
        false => store.discard(queue, None, id).await,
    };
    assert!(found.expect("the store answers"), "the dead item was not found");
    walk.dead.remove(&id);
    if !requeues {
        walk.gone.insert(id);
    }
}

async fn random_walk_keeps_key_order_and_loses_nothing(queue: TestQueue) {
    let nodes = [queue.clone(), queue.reopened().await];
    let (mut walk, mut rng) = (WalkState::default(), SeededRng(7));
    for step in 0..STEPS {
        let node = &nodes[usize::from(rng.below(2) == 0)];
        match rng.below(12) {
            0..3 => enqueue(node, &mut walk, &mut rng).await,
            3..7 => {
                let lease = if rng.below(3) == 0 { SHORT } else { LONG };
                let at_most = usize::try_from(1 + rng.below(6)).unwrap();
                walk.check_leased(node.lease_for(at_most, lease).await);
            }
            7..11 => resolve(node, &mut walk, &mut rng).await,
            _ => resolve_dead(node, &mut walk, rng.below(2) == 0).await,
        }
        if step % 40 == 39 {
            queue.context.outlive(SHORT).await;
        }
    }
    while !walk.batches.is_empty() {
        resolve(&queue, &mut walk, &mut rng).await;
    }
    while !walk.dead.is_empty() {
        resolve_dead(&queue, &mut walk, true).await;
    }
    for _ in 0..20 {
        if walk.gone.len() == walk.items.len() {
            break;
        }
        queue.context.outlive(SHORT).await;
        let batch = queue.lease(super::ALL).await;
        queue.finish(&batch).await;
        let ids = batch.ids();
        walk.check_leased(batch);
        walk.gone.extend(ids);
    }
    assert_eq!(walk.gone.len(), walk.items.len(), "something is not handed out any more");
    assert_eq!(queue.counts().await, (0, 0, 0));
}
