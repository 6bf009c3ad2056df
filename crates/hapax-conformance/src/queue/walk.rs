//! A long random walk over several nodes: leases of all lengths, late steps, retries, burials, an
//! operator's decisions. Whatever happens, the order of each key holds, and in the end nothing is left.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use hapax_core::queue::{ItemId, ItemOutcome, QueueItem, Resolved};

use super::{Desk, Hand, ack, bury, retry, uncounted_retry};
use crate::scene::{LONG, SHORT, Scene};
use crate::subject::laws;

laws![random_walk_keeps_key_order_and_loses_nothing];

const STEPS: u64 = 400;
const KEYS: u64 = 4;

/// Always the same numbers, so that a failure can be found again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

#[derive(Default)]
struct Walk {
    /// In the order of enqueueing.
    items: Vec<QueueItem>,
    gone: HashSet<ItemId>,
    /// Dead ones, and whether they block.
    dead: HashMap<ItemId, bool>,
    hands: Vec<Hand>,
}

impl Walk {
    fn handed_out(&mut self, hand: Hand) {
        for (place, leased) in hand.items.iter().enumerate() {
            let id = leased.item.id;
            assert!(!self.gone.contains(&id) && !self.dead.contains_key(&id), "it had its end");
            let earlier = self.items.iter().take_while(|item| item.id != id);
            for item in earlier.filter(|item| item.key.is_some() && item.key == leased.item.key) {
                let out_of_the_way = self.gone.contains(&item.id)
                    || self.dead.get(&item.id) == Some(&false)
                    || hand.items[..place].iter().any(|before| before.item.id == item.id);
                assert!(out_of_the_way, "before an earlier one of its key");
            }
        }
        if !hand.items.is_empty() {
            self.hands.push(hand);
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

fn outcome(dice: &mut Dice) -> ItemOutcome {
    match dice.below(8) {
        0 => retry(Duration::ZERO),
        1 => retry(SHORT),
        2 => uncounted_retry(Duration::ZERO),
        3 => bury(dice.below(2) == 0),
        _ => ack(LONG),
    }
}

async fn enqueue(desk: &Desk, walk: &mut Walk, dice: &mut Dice) {
    let new: Vec<_> = (0..=dice.below(4))
        .map(|_| {
            let item =
                if dice.below(5) == 0 { desk.item("t").delay(SHORT) } else { desk.item("t") };
            match dice.below(KEYS + 1) {
                0 => item,
                key => item.key(&format!("k{key}")),
            }
        })
        .collect();
    desk.accepted(&new).await;
    walk.items.extend(new);
}

/// Some hand, perhaps one whose lease has lapsed, ends some of what it was given.
async fn resolve(desk: &Desk, walk: &mut Walk, dice: &mut Dice) {
    if walk.hands.is_empty() {
        return;
    }
    let which = usize::try_from(dice.below(walk.hands.len() as u64)).unwrap();
    let mut hand = walk.hands.swap_remove(which);
    let mut outcomes: Vec<_> = hand.ids().into_iter().map(|id| (id, outcome(dice))).collect();
    if dice.below(3) == 0 && outcomes.len() > 1 {
        outcomes.truncate(1);
    }
    let answers = desk.resolve(&hand.token, &outcomes).await;
    for ((id, outcome), answer) in outcomes.iter().zip(answers) {
        if answer == Resolved::Done {
            walk.resolved(*id, outcome);
        }
    }
    hand.items.drain(..outcomes.len());
    if !hand.items.is_empty() {
        walk.hands.push(hand);
    }
}

async fn decide(desk: &Desk, walk: &mut Walk, requeues: bool) {
    let Some(id) = walk.dead.keys().copied().min() else { return };
    let (store, queue) = (&desk.s.store, &desk.queue);
    let ruled = match requeues {
        true => store.requeue(queue, None, id).await,
        false => store.discard(queue, None, id).await,
    };
    assert!(ruled.expect("the store answers"), "a dead letter is there");
    walk.dead.remove(&id);
    if !requeues {
        walk.gone.insert(id);
    }
}

async fn random_walk_keeps_key_order_and_loses_nothing(s: Scene) {
    let desk = Desk::new(s);
    let nodes = [desk.clone(), desk.reopened().await];
    let (mut walk, mut dice) = (Walk::default(), Dice(7));
    for step in 0..STEPS {
        let node = &nodes[usize::from(dice.below(2) == 0)];
        match dice.below(12) {
            0..3 => enqueue(node, &mut walk, &mut dice).await,
            3..7 => {
                let lease = if dice.below(3) == 0 { SHORT } else { LONG };
                let at_most = usize::try_from(1 + dice.below(6)).unwrap();
                walk.handed_out(node.lease_for(at_most, lease).await);
            }
            7..11 => resolve(node, &mut walk, &mut dice).await,
            _ => decide(node, &mut walk, dice.below(2) == 0).await,
        }
        if step % 40 == 39 {
            desk.s.outlive(SHORT).await;
        }
    }
    while !walk.hands.is_empty() {
        resolve(&desk, &mut walk, &mut dice).await;
    }
    while !walk.dead.is_empty() {
        decide(&desk, &mut walk, true).await;
    }
    for _ in 0..20 {
        if walk.gone.len() == walk.items.len() {
            break;
        }
        desk.s.outlive(SHORT).await;
        let hand = desk.lease(super::ALL).await;
        desk.finish(&hand).await;
        let ids = hand.ids();
        walk.handed_out(hand);
        walk.gone.extend(ids);
    }
    assert_eq!(walk.gone.len(), walk.items.len(), "something is not handed out any more");
    assert_eq!(desk.counts().await, (0, 0, 0));
}
