//! Compares queues with their model: several workers, several keys, late steps.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::{
    DeadQuery, Enqueued, ItemId, ItemOutcome, LeaseRequest, LeasedItem, QueueItem, QueueName,
    Resolved,
};
use hapax_core::{Fence, Token};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{HistoryTimes, Model, expect, expect_equal, failed};
use crate::context::LawContext;

const ITEMS: usize = 9;
const WORKERS: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct QueueHistoryStep {
    node: usize,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    /// `delay` is none, brief or long.
    Enqueue {
        items: Vec<usize>,
        delay: Option<bool>,
    },
    Lease {
        worker: usize,
        at_most: usize,
        brief: bool,
    },
    /// The worker repeats its lease with the same token.
    Again {
        worker: usize,
        brief: bool,
    },
    Renew {
        worker: usize,
        late: bool,
        brief: bool,
    },
    /// `late` presents the token of the worker's lease before its last one.
    Resolve {
        worker: usize,
        late: bool,
        items: Vec<(usize, ModelOutcome)>,
    },
    Requeue {
        item: usize,
    },
    Discard {
        item: usize,
    },
    Look,
}

#[derive(Clone, Copy, Debug)]
enum ModelOutcome {
    Ack { retention: Option<bool> },
    Retry { after: Option<bool>, counts: bool, keeps_place: bool },
    Bury { blocks: bool },
}

pub(super) fn steps() -> impl Strategy<Value = Vec<QueueHistoryStep>> {
    let wait = || prop_oneof![4 => Just(None), 2 => Just(Some(true)), 1 => Just(Some(false))];
    let retention = prop_oneof![1 => Just(None), 1 => Just(Some(true)), 2 => Just(Some(false))];
    let how = prop_oneof![
        4 => retention.prop_map(|retention| ModelOutcome::Ack { retention }),
        3 => (wait(), any::<bool>(), prop::bool::weighted(0.7))
            .prop_map(|(after, counts, keeps_place)| ModelOutcome::Retry { after, counts, keeps_place }),
        2 => any::<bool>().prop_map(|blocks| ModelOutcome::Bury { blocks }),
    ];
    let some = |count| prop::sample::subsequence((0..ITEMS).collect::<Vec<_>>(), count);
    let items = some(1..5).prop_shuffle();
    let resolved = (some(1..ITEMS + 1).prop_shuffle(), prop::collection::vec(how, ITEMS))
        .prop_map(|(items, how)| items.into_iter().zip(how).collect());
    let worker = || 0..WORKERS;
    let late = || prop::bool::weighted(0.2);
    let action = prop_oneof![
        5 => (items, wait()).prop_map(|(items, delay)| Action::Enqueue { items, delay }),
        6 => (worker(), 1..5_usize, prop::bool::weighted(0.3))
            .prop_map(|(worker, at_most, brief)| Action::Lease { worker, at_most, brief }),
        1 => (worker(), any::<bool>()).prop_map(|(worker, brief)| Action::Again { worker, brief }),
        1 => (worker(), late(), any::<bool>())
            .prop_map(|(worker, late, brief)| Action::Renew { worker, late, brief }),
        6 => (worker(), late(), resolved)
            .prop_map(|(worker, late, items)| Action::Resolve { worker, late, items }),
        1 => (0..ITEMS).prop_map(|item| Action::Requeue { item }),
        1 => (0..ITEMS).prop_map(|item| Action::Discard { item }),
        1 => Just(Action::Look),
    ];
    let one = (0..2_usize, action).prop_map(|(node, action)| QueueHistoryStep { node, action });
    prop::collection::vec(one, 4..40)
}

/// The model of one item. Items of a key are ordered by their position in the model's list.
struct ModelItem {
    item: usize,
    /// 0 for none.
    key: usize,
    attempts: u32,
    fence: Option<Fence>,
    phase: Phase,
}

#[derive(Clone, PartialEq)]
enum Phase {
    Waiting(Wait),
    InFlight { token: Token, brief: bool, lapsed: bool },
    Dead { blocks: bool },
    Done { token: Token, brief: bool },
}

#[derive(Clone, Copy, PartialEq)]
enum Wait {
    Due,
    Briefly,
    Long,
}

impl Wait {
    fn of(wait: Option<bool>) -> Self {
        match wait {
            None => Self::Due,
            Some(true) => Self::Briefly,
            Some(false) => Self::Long,
        }
    }
}

impl ModelItem {
    fn is_held_by(&self, asker: &Token) -> bool {
        matches!(&self.phase, Phase::InFlight { token, .. } if token == asker)
    }

    fn may_be_leased(&self) -> bool {
        matches!(self.phase, Phase::Waiting(Wait::Due) | Phase::InFlight { lapsed: true, .. })
    }

    fn holds_back_its_key(&self) -> bool {
        !matches!(self.phase, Phase::Done { .. } | Phase::Dead { blocks: false })
    }
}

impl ModelOutcome {
    fn outcome(self, times: HistoryTimes) -> ItemOutcome {
        match self {
            Self::Ack { retention } => {
                ItemOutcome::Ack { retention: optional_time(times, retention) }
            }
            Self::Retry { after, counts, keeps_place } => {
                let after = optional_time(times, after);
                ItemOutcome::Retry { after, counts, reason: "later".into(), keeps_place }
            }
            Self::Bury { blocks } => ItemOutcome::Bury { reason: "never".into(), blocks },
        }
    }
}

/// The key that an item is enqueued with.
fn first_key(item: usize) -> usize {
    item % 3
}

fn optional_time(times: HistoryTimes, brief: Option<bool>) -> Duration {
    brief.map_or(Duration::ZERO, |brief| times.time(brief))
}

pub(super) struct QueueModel {
    times: HistoryTimes,
    nodes: [LawContext; 2],
    queue: QueueName,
    items: Vec<QueueItem>,
    known: Vec<ModelItem>,
    /// The tokens of each worker's leases, the last one at the end.
    tokens: [Vec<Token>; WORKERS],
}

impl Model for QueueModel {
    type Step = QueueHistoryStep;

    async fn new(s: LawContext, times: HistoryTimes) -> Result<Self, TestCaseError> {
        let queue = QueueName::new(&format!("q{}", Token::random().as_str()));
        let item = |i: usize| {
            let item = QueueItem::new(&s.tenant, "t", i.to_string());
            match first_key(i) {
                0 => item,
                key => item.key(&key.to_string()),
            }
        };
        Ok(Self {
            times,
            items: (0..ITEMS).map(item).collect(),
            nodes: [s.clone(), s.reopened().await],
            queue: queue.expect("a name"),
            known: Vec::new(),
            tokens: Default::default(),
        })
    }

    async fn step(&mut self, step: QueueHistoryStep) -> Result<(), TestCaseError> {
        let QueueHistoryStep { node, action } = step;
        let times = self.times;
        let store = self.nodes[node].store.clone();
        let queue = self.queue.clone();
        match action {
            Action::Enqueue { items, delay } => {
                let delayed = optional_time(times, delay);
                let call: Vec<_> =
                    items.iter().map(|i| self.items[*i].clone().delay(delayed)).collect();
                let answers = store.enqueue(&queue, &call).await.map_err(failed)?;
                let expected: Vec<_> = items.iter().map(|i| self.enqueue(*i, delay)).collect();
                expect_equal!(answers, expected);
            }
            Action::Lease { worker, at_most, brief } => {
                let take = LeaseRequest::new(at_most, times.time(brief));
                let leased = store.lease(&queue, &take).await.map_err(failed)?;
                self.tokens[worker].push(take.token.clone());
                self.leased(&take, brief, &leased)?;
            }
            Action::Again { worker, brief } => {
                let token = self.token(worker, false);
                self.again(
                    node,
                    LeaseRequest { token, max_items: 1, lease: times.time(brief) },
                    brief,
                )
                .await?;
            }
            Action::Renew { worker, late, brief } => {
                let token = self.token(worker, late);
                let renewed =
                    store.renew(&queue, &token, times.time(brief)).await.map_err(failed)?;
                expect_equal!(renewed, self.renew(&token, brief).len() as u64);
            }
            Action::Resolve { worker, late, items } => {
                let token = self.token(worker, late);
                let call: Vec<_> =
                    items.iter().map(|(i, how)| (self.items[*i].id, how.outcome(times))).collect();
                let answers = store.resolve(&queue, &token, &call).await.map_err(failed)?;
                let expected = items.iter().map(|(i, how)| self.resolve(*i, &token, *how));
                expect_equal!(answers, expected.collect::<Vec<_>>());
            }
            Action::Requeue { item } => {
                let id = self.items[item].id;
                let found = store.requeue(&queue, None, id).await.map_err(failed)?;
                let dead_item = self.dead_item(item);
                expect_equal!(found, dead_item.is_some());
                if let Some(known) = dead_item {
                    known.phase = Phase::Waiting(Wait::Due);
                    known.attempts = 0;
                }
            }
            Action::Discard { item } => {
                let id = self.items[item].id;
                let found = store.discard(&queue, None, id).await.map_err(failed)?;
                expect_equal!(found, self.dead_item(item).is_some());
                if found {
                    self.known.retain(|known| known.item != item);
                }
            }
            Action::Look => self.look(node).await?,
        }
        Ok(())
    }

    fn expire_brief(&mut self) -> bool {
        let known = self.known.len();
        self.known.retain(|known| !matches!(known.phase, Phase::Done { brief: true, .. }));
        let mut expired = self.known.len() < known;
        for known in &mut self.known {
            match &mut known.phase {
                Phase::Waiting(wait @ Wait::Briefly) => *wait = Wait::Due,
                Phase::InFlight { brief: true, lapsed, .. } if !*lapsed => *lapsed = true,
                _ => continue,
            }
            expired = true;
        }
        expired
    }

    async fn finish(&mut self) -> Result<(), TestCaseError> {
        self.look(0).await
    }
}

impl QueueModel {
    fn find(&mut self, item: usize) -> Option<&mut ModelItem> {
        self.known.iter_mut().find(|known| known.item == item)
    }

    fn token(&self, worker: usize, late: bool) -> Token {
        let token = self.tokens[worker].iter().rev().nth(usize::from(late));
        token.cloned().unwrap_or_else(|| Token::presented("unknown"))
    }

    fn enqueue(&mut self, item: usize, delay: Option<bool>) -> Enqueued {
        if self.find(item).is_some() {
            return Enqueued::Duplicate;
        }
        let phase = Phase::Waiting(Wait::of(delay));
        self.known.push(ModelItem { item, key: first_key(item), attempts: 0, fence: None, phase });
        Enqueued::Accepted
    }

    /// The items of each key that may be leased, in order; items of "key" 0 have no key.
    fn leasable(&self) -> Vec<Vec<usize>> {
        let of_key = |key: usize| {
            let known = self.known.iter().filter(move |known| known.key == key);
            let mut open = true;
            let free = known.filter(move |known| {
                let may = known.may_be_leased() && open;
                open &= key == 0 || may || !known.holds_back_its_key();
                may
            });
            free.map(|known| known.item).collect()
        };
        (0..3).map(of_key).collect()
    }

    /// The index of a leased item, if the item is as it was enqueued, except for a key that it left.
    fn index(&self, leased: &LeasedItem) -> Option<usize> {
        let index = self.items.iter().position(|item| item.id == leased.item.id)?;
        (leased.item == self.stored_item(index)).then_some(index)
    }

    fn stored_item(&self, index: usize) -> QueueItem {
        let mut item = self.items[index].clone();
        item.key = item.key.filter(|_| self.key(index) != 0);
        item
    }

    fn key(&self, item: usize) -> usize {
        self.known.iter().find(|known| known.item == item).map_or(0, |known| known.key)
    }

    fn leased(
        &mut self,
        take: &LeaseRequest,
        brief: bool,
        leased: &[LeasedItem],
    ) -> Result<(), TestCaseError> {
        let leasable = self.leasable();
        let indices: Vec<_> = leased.iter().filter_map(|leased| self.index(leased)).collect();
        expect_equal!(indices.len(), leased.len());
        let due = leasable.iter().map(Vec::len).sum::<usize>();
        expect_equal!(leased.len(), due.min(take.max_items));
        for (key, leasable) in leasable.iter().enumerate() {
            let got: Vec<_> = indices.iter().copied().filter(|i| self.key(*i) == key).collect();
            let good = match key {
                0 => got.iter().all(|i| leasable.contains(i)),
                _ => leasable.starts_with(&got),
            };
            expect(good, || format!("of key {key} it gave {got:?}, due was {leasable:?}"))?;
        }
        for (item, leased) in indices.into_iter().zip(leased) {
            let token = take.token.clone();
            let known = self.find(item).expect("it was among those due");
            known.attempts += 1;
            expect_equal!(leased.attempt, known.attempts);
            expect(Some(leased.fence) > known.fence, || "a fence that did not grow".into())?;
            known.fence = Some(leased.fence);
            known.phase = Phase::InFlight { token, brief, lapsed: false };
        }
        Ok(())
    }

    /// Repeats a lease, but only if the token still holds an item: otherwise it would be a new
    /// lease.
    async fn again(
        &mut self,
        node: usize,
        take: LeaseRequest,
        brief: bool,
    ) -> Result<(), TestCaseError> {
        let lasting = |known: &ModelItem| {
            known.is_held_by(&take.token)
                && matches!(known.phase, Phase::InFlight { lapsed: false, .. })
        };
        if !self.known.iter().any(lasting) {
            return Ok(());
        }
        let answer = self.nodes[node].store.lease(&self.queue, &take).await.map_err(failed)?;
        let mut told: Vec<_> =
            answer.iter().map(|l| (self.index(l), l.attempt, Some(l.fence))).collect();
        told.sort();
        let mut expected = self.renew(&take.token, brief);
        expected.sort();
        expect_equal!(told, expected);
        Ok(())
    }

    fn renew(&mut self, token: &Token, brief: bool) -> Vec<(Option<usize>, u32, Option<Fence>)> {
        let held = self.known.iter_mut().filter(|known| known.is_held_by(token));
        held.map(|known| {
            known.phase = Phase::InFlight { token: token.clone(), brief, lapsed: false };
            (Some(known.item), known.attempts, known.fence)
        })
        .collect()
    }

    fn resolve(&mut self, item: usize, token: &Token, how: ModelOutcome) -> Resolved {
        let Some(known) = self.find(item) else { return Resolved::Lost };
        if matches!(&known.phase, Phase::Done { token: worker, .. } if worker == token) {
            let again = matches!(how, ModelOutcome::Ack { .. });
            return if again { Resolved::Done } else { Resolved::Lost };
        }
        if !known.is_held_by(token) {
            return Resolved::Lost;
        }
        match how {
            ModelOutcome::Ack { retention: None } => self.known.retain(|known| known.item != item),
            ModelOutcome::Ack { retention: Some(brief) } => {
                known.phase = Phase::Done { token: token.clone(), brief };
            }
            ModelOutcome::Retry { after, counts, keeps_place } => {
                if !keeps_place {
                    known.key = 0;
                }
                known.attempts -= u32::from(!counts);
                known.phase = Phase::Waiting(Wait::of(after));
            }
            ModelOutcome::Bury { blocks } => known.phase = Phase::Dead { blocks },
        }
        Resolved::Done
    }

    fn dead_item(&mut self, item: usize) -> Option<&mut ModelItem> {
        self.find(item).filter(|known| matches!(known.phase, Phase::Dead { .. }))
    }

    async fn look(&self, node: usize) -> Result<(), TestCaseError> {
        let store = &self.nodes[node].store;
        let depth = store.depth(&self.queue, None).await.map_err(failed)?;
        let count = |which: fn(&Phase) -> bool| {
            self.known.iter().filter(|known| which(&known.phase)).count() as u64
        };
        let in_flight = count(|phase| matches!(phase, Phase::InFlight { lapsed: false, .. }));
        let lapsed = count(|phase| matches!(phase, Phase::InFlight { lapsed: true, .. }));
        let waiting = count(|phase| matches!(phase, Phase::Waiting(_))) + lapsed;
        let dead = count(|phase| matches!(phase, Phase::Dead { .. }));
        expect_equal!((depth.waiting, depth.in_flight, depth.dead), (waiting, in_flight, dead));
        expect_equal!(depth.oldest_age.is_some(), waiting + in_flight > 0);
        let waiting_items = store.waiting(&self.queue, None, 100).await.map_err(failed)?;
        let waiting_items: Vec<_> = waiting_items
            .into_iter()
            .map(|item| (item.id, item.key, item.attempts, item.in_flight))
            .collect();
        let expected = self.known.iter().filter_map(|known| {
            let in_flight = match known.phase {
                Phase::Waiting(_) => false,
                Phase::InFlight { lapsed, .. } => !lapsed,
                Phase::Dead { .. } | Phase::Done { .. } => return None,
            };
            let item = self.stored_item(known.item);
            Some((item.id, item.key, known.attempts, in_flight))
        });
        expect_equal!(waiting_items, expected.collect::<Vec<_>>());
        let dead_items =
            store.dead(&self.queue, None, &DeadQuery::new(100)).await.map_err(failed)?;
        let dead_items: Vec<_> =
            dead_items.into_iter().map(|dead| (dead.id, dead.attempts, dead.key)).collect();
        let mut expected: Vec<(ItemId, u32, Option<Arc<str>>)> = Vec::new();
        for known in self.known.iter().filter(|k| matches!(k.phase, Phase::Dead { .. })) {
            let item = self.stored_item(known.item);
            expected.push((item.id, known.attempts, item.key));
        }
        expected.sort();
        expect_equal!(dead_items, expected);
        Ok(())
    }
}
