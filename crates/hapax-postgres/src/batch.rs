//! Gathers concurrent operations into one statement.
//!
//! Nobody waits for company: an operation that finds its lane idle goes at once, and what comes
//! while it is under way makes up the next statement.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::{Key, StoreError, limited};
use tokio::sync::oneshot;

use crate::error::{Failure, again};
use crate::link::Link;
use crate::session::Session;
use crate::wake::Wakes;

/// How many operations may wait in a lane. They leave with their time limit anyway.
const QUEUE: usize = 16_384;

/// How many bytes of values go into one statement, save that one operation always goes.
const WEIGHT: usize = 4 << 20;

/// What is done with a batch.
pub(crate) trait Work: Send + Sync + 'static {
    type Item: Send + Sync + 'static;
    type Answer: Send + Sync + 'static;

    fn key(item: &Self::Item) -> &Key;

    /// How many bytes it has beyond its key.
    fn weight(_item: &Self::Item) -> usize {
        0
    }

    /// Fills in an answer for each item. After an error those that are filled in still count.
    fn run<S: Session>(
        session: &mut S,
        items: &[Self::Item],
        answers: &mut [Option<Self::Answer>],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Called when it is committed.
    fn after(_wakes: &Wakes, _item: &Self::Item, _answer: &Self::Answer) {}
}

pub(crate) struct Batcher<W: Work>(Arc<Shared<W>>);

struct Shared<W: Work> {
    link: Arc<Link>,
    wakes: Arc<Wakes>,
    lanes: Vec<Mutex<Lane<W>>>,
    cap: usize,
}

/// One statement at a time. A key always takes the same lane, so that the operations of this
/// process never find each other in the way.
struct Lane<W: Work> {
    queue: VecDeque<Waiting<W>>,
    running: bool,
}

struct Waiting<W: Work> {
    item: W::Item,
    reply: oneshot::Sender<Result<W::Answer, StoreError>>,
}

impl<W: Work> Batcher<W> {
    pub(crate) fn new(link: Arc<Link>, wakes: Arc<Wakes>, lanes: usize, cap: usize) -> Self {
        let lane = || Mutex::new(Lane { queue: VecDeque::new(), running: false });
        let lanes = (0..lanes.max(1)).map(|_| lane()).collect();
        Self(Arc::new(Shared { link, wakes, lanes, cap }))
    }

    pub(crate) async fn submit(&self, item: W::Item) -> Result<W::Answer, StoreError> {
        let lane = (W::key(&item).digest() % self.0.lanes.len() as u64) as usize;
        let (reply, answer) = oneshot::channel();
        let start = self.0.lane(lane).push(Waiting { item, reply })?;
        if start {
            tokio::spawn(drain(Running { shared: self.0.clone(), lane, at_rest: false }));
        }
        limited(self.0.link.limit, async { answer.await.unwrap_or_else(|_| Err(unfinished())) })
            .await
    }
}

impl<W: Work> Shared<W> {
    fn lane(&self, lane: usize) -> MutexGuard<'_, Lane<W>> {
        self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Work> Lane<W> {
    /// Whether the lane has to be started.
    fn push(&mut self, waiting: Waiting<W>) -> Result<bool, StoreError> {
        if self.queue.len() >= QUEUE {
            let reason = "too many calls are waiting for it".into();
            return Err(StoreError::Unavailable { reason, source: None });
        }
        self.queue.push_back(waiting);
        Ok(!mem::replace(&mut self.running, true))
    }

    /// The next batch; empty where the lane has come to rest. Who gave up meanwhile is left out:
    /// nobody would know that he was granted anything.
    fn next(&mut self, cap: usize) -> Vec<Waiting<W>> {
        let mut batch = Vec::new();
        let mut weight = 0;
        while batch.len() < cap
            && let Some(waiting) = self.queue.pop_front()
        {
            if waiting.reply.is_closed() {
                continue;
            }
            weight += W::weight(&waiting.item);
            if weight > WEIGHT && !batch.is_empty() {
                self.queue.push_front(waiting);
                break;
            }
            batch.push(waiting);
        }
        self.running = !batch.is_empty();
        batch
    }
}

/// Puts the lane to rest should its task end before its time.
struct Running<W: Work> {
    shared: Arc<Shared<W>>,
    lane: usize,
    at_rest: bool,
}

impl<W: Work> Drop for Running<W> {
    fn drop(&mut self) {
        // At rest it is not this task's business any more: another one may have been started.
        if !self.at_rest {
            let mut lane = self.shared.lane(self.lane);
            lane.running = false;
            lane.queue.clear();
        }
    }
}

async fn drain<W: Work>(mut running: Running<W>) {
    loop {
        // Lets those who are ready to run put in their operations.
        tokio::task::yield_now().await;
        let batch = running.shared.lane(running.lane).next(running.shared.cap);
        if batch.is_empty() {
            running.at_rest = true;
            return;
        }
        serve(&running.shared, batch).await;
    }
}

async fn serve<W: Work>(shared: &Shared<W>, batch: Vec<Waiting<W>>) {
    let (items, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(|w| (w.item, w.reply)).unzip();
    let mut answers: Vec<Option<W::Answer>> = items.iter().map(|_| None).collect();
    let mut about_data = false;
    let outcome = attempt(shared, &items, &mut answers, &mut about_data).await;
    for (at, reply) in replies.into_iter().enumerate() {
        let answer = match (answers[at].take(), &outcome) {
            (Some(answer), _) => Ok(answer),
            // One bad item must not fail its neighbours.
            (None, Err(_)) if about_data && items.len() > 1 && !reply.is_closed() => {
                let mut own = [None];
                let item = std::slice::from_ref(&items[at]);
                let outcome = attempt(shared, item, &mut own, &mut false).await;
                let [own] = own;
                own.ok_or_else(|| outcome.err().unwrap_or_else(unfinished))
            }
            (None, Err(error)) => Err(again(error)),
            (None, Ok(())) => Err(unfinished()),
        };
        if let Ok(answer) = &answer {
            W::after(&shared.wakes, &items[at], answer);
        }
        // Whoever does not listen any more asks again with his token.
        let _ = reply.send(answer);
    }
}

async fn attempt<W: Work>(
    shared: &Shared<W>,
    items: &[W::Item],
    answers: &mut [Option<W::Answer>],
    about_data: &mut bool,
) -> Result<(), StoreError> {
    let link = &shared.link;
    link.within(async {
        let mut lease = link.lease().await?;
        let outcome = W::run(&mut lease, items, answers).await;
        *about_data = matches!(&outcome, Err(failure) if failure.is_about_data());
        outcome
    })
    .await
}

fn unfinished() -> StoreError {
    StoreError::Internal { reason: "an operation was left without an answer".into(), source: None }
}
