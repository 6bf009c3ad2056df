//! Gathers concurrent operations into one statement.
//!
//! Nobody waits for company: an operation that finds nothing under way goes at once, and what comes
//! meanwhile makes up the next statement. A commit costs the same for one operation and for a
//! hundred, so that a second statement goes beside the first only when it is full.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::{StoreError, with_timeout};
use tokio::sync::oneshot;

use crate::connect::Link;
use crate::connect::session::Session;
use crate::error::{Failure, again};
use crate::wake::Wakes;

/// How many operations may wait. They leave with their time limit anyway.
const QUEUE: usize = 16_384;

/// How many bytes of values go into one statement, save that one operation always goes.
const WEIGHT: usize = 4 << 20;

/// What is done with a batch.
pub(crate) trait Work: Send + Sync + 'static {
    type Item: Send + Sync + 'static;
    type Answer: Send + Sync + 'static;

    /// Operations of the same lane are never in two statements at once, so that those of this process
    /// do not find each other in the way; and they go in the order in which they came.
    fn lane(item: &Self::Item) -> u64;

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
    line: Mutex<Line<W>>,
}

/// Who waits, and what is under way.
struct Line<W: Work> {
    queue: VecDeque<Waiting<W>>,
    /// The lanes in statements under way.
    busy: HashSet<u64>,
    workers: usize,
    most_workers: usize,
    cap: usize,
}

struct Waiting<W: Work> {
    item: W::Item,
    lane: u64,
    reply: oneshot::Sender<Result<W::Answer, StoreError>>,
}

impl<W: Work> Batcher<W> {
    pub(crate) fn new(link: Arc<Link>, wakes: Arc<Wakes>, workers: usize, cap: usize) -> Self {
        let line = Mutex::new(Line {
            queue: VecDeque::new(),
            busy: HashSet::new(),
            workers: 0,
            most_workers: workers,
            cap,
        });
        Self(Arc::new(Shared { link, wakes, line }))
    }

    pub(crate) async fn submit(&self, item: W::Item) -> Result<W::Answer, StoreError> {
        self.start(item)?.await
    }

    /// Puts it in line at once; the future is the wait for its answer.
    pub(crate) fn start(
        &self,
        item: W::Item,
    ) -> Result<impl Future<Output = Result<W::Answer, StoreError>> + use<W>, StoreError> {
        let (reply, answer) = oneshot::channel();
        let lane = W::lane(&item);
        if self.0.line().push(Waiting { item, lane, reply })? {
            let worker = Worker { shared: self.0.clone(), lanes: Vec::new(), at_rest: false };
            tokio::spawn(work(worker));
        }
        let answer = async { answer.await.unwrap_or_else(|_| Err(unfinished())) };
        Ok(with_timeout(self.0.link.limit, answer))
    }
}

impl<W: Work> Shared<W> {
    fn line(&self) -> MutexGuard<'_, Line<W>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Work> Line<W> {
    /// Whether a worker has to be started.
    fn push(&mut self, waiting: Waiting<W>) -> Result<bool, StoreError> {
        if self.queue.len() >= QUEUE {
            let reason = "too many calls are waiting for it".into();
            return Err(StoreError::Unavailable { reason, source: None });
        }
        self.queue.push_back(waiting);
        let full = self.queue.len() >= self.cap && self.workers < self.most_workers;
        let start = self.workers == 0 || full;
        self.workers += usize::from(start);
        Ok(start)
    }

    /// The next batch. Who gave up meanwhile is left out: nobody would know that he was granted
    /// anything. Who waits for a lane under way is served by the worker that has it.
    fn next(&mut self) -> Vec<Waiting<W>> {
        let (mut batch, mut later) = (Vec::new(), Vec::new());
        let mut weight = 0;
        while batch.len() < self.cap
            && let Some(waiting) = self.queue.pop_front()
        {
            if waiting.reply.is_closed() {
                continue;
            }
            weight += W::weight(&waiting.item);
            if weight > WEIGHT && !batch.is_empty() {
                later.push(waiting);
                break;
            }
            if self.busy.contains(&waiting.lane) { &mut later } else { &mut batch }.push(waiting);
        }
        for waiting in later.into_iter().rev() {
            self.queue.push_front(waiting);
        }
        self.busy.extend(batch.iter().map(|waiting| waiting.lane));
        batch
    }
}

struct Worker<W: Work> {
    shared: Arc<Shared<W>>,
    lanes: Vec<u64>,
    at_rest: bool,
}

impl<W: Work> Worker<W> {
    /// The next batch; none where this worker has come to rest.
    fn next(&mut self) -> Option<Vec<Waiting<W>>> {
        let mut line = self.shared.line();
        for lane in self.lanes.drain(..) {
            line.busy.remove(&lane);
        }
        let batch = line.next();
        self.lanes.extend(batch.iter().map(|waiting| waiting.lane));
        if batch.is_empty() {
            line.workers -= 1;
            self.at_rest = true;
            return None;
        }
        Some(batch)
    }
}

/// Should the task end before its time (a panic, the end of the runtime), the others go on.
impl<W: Work> Drop for Worker<W> {
    fn drop(&mut self) {
        if self.at_rest {
            return;
        }
        let mut line = self.shared.line();
        for lane in &self.lanes {
            line.busy.remove(lane);
        }
        line.workers -= 1;
        if line.workers == 0 {
            line.queue.clear();
        }
    }
}

async fn work<W: Work>(mut worker: Worker<W>) {
    loop {
        // Lets those who are ready to run put in their operations.
        tokio::task::yield_now().await;
        let Some(batch) = worker.next() else { return };
        serve(&worker.shared, batch).await;
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
