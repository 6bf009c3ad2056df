//! Combines concurrent operations into one statement.
//!
//! No operation waits for a batch to fill: without a running statement it starts at once, and those
//! that arrive meanwhile make up the next statement. A commit costs the same for one operation and
//! for a hundred, so a second statement runs beside the first only when the queue holds a full batch.

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::{StoreError, StoreResult, with_timeout};
use tokio::sync::oneshot;

use crate::connect::ConnectionPool;
use crate::connect::session::SqlSession;
use crate::error::SqlResult;
use crate::wake::WakeNotifier;

/// How many operations may wait; each waits no longer than its timeout.
const MAX_QUEUED: usize = 16_384;

/// How many bytes of values go into one statement, unless a single operation has more.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// An operation that is run in batches.
pub(crate) trait BatchOperation: Send + Sync + 'static {
    type Item: Send + Sync + 'static;
    type Answer: Send + Sync + 'static;

    /// Operations with the same key never run in two statements at once, so that those of one process
    /// do not meet each other's locks, and they run in the order of their arrival.
    fn conflict_key(item: &Self::Item) -> u64;

    /// The size of the operation's values.
    fn bytes(_item: &Self::Item) -> usize {
        0
    }

    /// Fills in an answer for each item. Answers filled in before an error still count.
    fn run<S: SqlSession>(
        session: &mut S,
        items: &[Self::Item],
        answers: &mut [Option<Self::Answer>],
    ) -> impl Future<Output = SqlResult<()>> + Send;

    /// Called after the commit.
    fn after_commit(_wakes: &WakeNotifier, _item: &Self::Item, _answer: &Self::Answer) {}
}

pub(crate) struct Batcher<O: BatchOperation>(Arc<Shared<O>>);

struct Shared<O: BatchOperation> {
    pool: Arc<ConnectionPool>,
    wakes: Arc<WakeNotifier>,
    queue_state: Mutex<BatchQueue<O>>,
}

/// The waiting operations, and the keys of the running ones.
struct BatchQueue<O: BatchOperation> {
    queue: VecDeque<QueuedOperation<O>>,
    /// The conflict keys of running statements.
    busy: HashSet<u64>,
    workers: usize,
    max_workers: usize,
    max_batch: usize,
}

struct QueuedOperation<O: BatchOperation> {
    item: O::Item,
    conflict_key: u64,
    reply: oneshot::Sender<StoreResult<O::Answer>>,
}

impl<O: BatchOperation> Batcher<O> {
    pub(crate) fn new(
        pool: Arc<ConnectionPool>,
        wakes: Arc<WakeNotifier>,
        workers: usize,
        max_batch: usize,
    ) -> Self {
        let queue_state = Mutex::new(BatchQueue {
            queue: VecDeque::new(),
            busy: HashSet::new(),
            workers: 0,
            max_workers: workers,
            max_batch,
        });
        Self(Arc::new(Shared { pool, wakes, queue_state }))
    }

    pub(crate) async fn submit(&self, item: O::Item) -> StoreResult<O::Answer> {
        self.start(item)?.await
    }

    /// Queues the operation at once; the future waits for its answer.
    pub(crate) fn start(
        &self,
        item: O::Item,
    ) -> StoreResult<impl Future<Output = StoreResult<O::Answer>> + use<O>> {
        let (reply, answer) = oneshot::channel();
        let conflict_key = O::conflict_key(&item);
        if self.0.queue_state().push(QueuedOperation { item, conflict_key, reply })? {
            let worker =
                BatchWorker { shared: self.0.clone(), conflict_keys: Vec::new(), finished: false };
            tokio::spawn(work(worker));
        }
        let answer = async { answer.await.unwrap_or_else(|_| Err(no_answer_error())) };
        Ok(with_timeout(self.0.pool.timeout, answer))
    }
}

impl<O: BatchOperation> Shared<O> {
    fn queue_state(&self) -> MutexGuard<'_, BatchQueue<O>> {
        self.queue_state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: BatchOperation> BatchQueue<O> {
    /// Queues an operation; whether a worker has to be started.
    fn push(&mut self, waiting: QueuedOperation<O>) -> StoreResult<bool> {
        if self.queue.len() >= MAX_QUEUED {
            let reason = "too many calls are waiting for it".into();
            return Err(StoreError::Unavailable { reason, source: None });
        }
        self.queue.push_back(waiting);
        let full = self.queue.len() >= self.max_batch && self.workers < self.max_workers;
        let start = self.workers == 0 || full;
        self.workers += usize::from(start);
        Ok(start)
    }

    /// The next batch. Operations whose caller gave up are dropped, because no one
    /// would learn of a grant. Operations whose conflict key is running are left to the worker that runs it.
    fn next(&mut self) -> Vec<QueuedOperation<O>> {
        let (mut batch, mut later) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        while batch.len() < self.max_batch
            && let Some(waiting) = self.queue.pop_front()
        {
            if waiting.reply.is_closed() {
                continue;
            }
            bytes += O::bytes(&waiting.item);
            if bytes > MAX_BATCH_BYTES && !batch.is_empty() {
                later.push(waiting);
                break;
            }
            if self.busy.contains(&waiting.conflict_key) { &mut later } else { &mut batch }
                .push(waiting);
        }
        for waiting in later.into_iter().rev() {
            self.queue.push_front(waiting);
        }
        self.busy.extend(batch.iter().map(|waiting| waiting.conflict_key));
        batch
    }
}

struct BatchWorker<O: BatchOperation> {
    shared: Arc<Shared<O>>,
    conflict_keys: Vec<u64>,
    finished: bool,
}

impl<O: BatchOperation> BatchWorker<O> {
    /// The next batch, or `None` if there is nothing to do, which ends this worker.
    fn next(&mut self) -> Option<Vec<QueuedOperation<O>>> {
        let mut queue_state = self.shared.queue_state();
        for conflict_key in self.conflict_keys.drain(..) {
            queue_state.busy.remove(&conflict_key);
        }
        let batch = queue_state.next();
        self.conflict_keys.extend(batch.iter().map(|waiting| waiting.conflict_key));
        if batch.is_empty() {
            queue_state.workers -= 1;
            self.finished = true;
            return None;
        }
        Some(batch)
    }
}

/// Lets other workers go on after a panic or the shutdown of this task's runtime.
impl<O: BatchOperation> Drop for BatchWorker<O> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let mut queue_state = self.shared.queue_state();
        for conflict_key in &self.conflict_keys {
            queue_state.busy.remove(conflict_key);
        }
        queue_state.workers -= 1;
        if queue_state.workers == 0 {
            queue_state.queue.clear();
        }
    }
}

async fn work<O: BatchOperation>(mut worker: BatchWorker<O>) {
    loop {
        // Let other ready tasks queue their operations first.
        tokio::task::yield_now().await;
        let Some(batch) = worker.next() else { return };
        serve(&worker.shared, batch).await;
    }
}

async fn serve<O: BatchOperation>(shared: &Shared<O>, batch: Vec<QueuedOperation<O>>) {
    let (items, replies): (Vec<_>, Vec<_>) = batch.into_iter().map(|w| (w.item, w.reply)).unzip();
    let mut answers: Vec<Option<O::Answer>> = items.iter().map(|_| None).collect();
    let mut is_about_one = false;
    let outcome = attempt(shared, &items, &mut answers, &mut is_about_one).await;
    for (at, reply) in replies.into_iter().enumerate() {
        let answer = match (answers[at].take(), &outcome) {
            (Some(answer), _) => Ok(answer),
            // One bad item must not fail its batch: run each item on its own.
            (None, Err(_)) if is_about_one && items.len() > 1 && !reply.is_closed() => {
                let mut own = [None];
                let item = std::slice::from_ref(&items[at]);
                let outcome = attempt(shared, item, &mut own, &mut false).await;
                let [own] = own;
                own.ok_or_else(|| outcome.err().unwrap_or_else(no_answer_error))
            }
            (None, Err(error)) => Err(error.clone()),
            (None, Ok(())) => Err(no_answer_error()),
        };
        if let Ok(answer) = &answer {
            O::after_commit(&shared.wakes, &items[at], answer);
        }
        // A caller that gave up retries with the same token.
        let _ = reply.send(answer);
    }
}

async fn attempt<O: BatchOperation>(
    shared: &Shared<O>,
    items: &[O::Item],
    answers: &mut [Option<O::Answer>],
    is_about_one: &mut bool,
) -> StoreResult<()> {
    let pool = &shared.pool;
    pool.run(async {
        let mut lease = pool.connection().await?;
        let outcome = O::run(&mut lease, items, answers).await;
        *is_about_one = matches!(&outcome, Err(error) if error.is_about_one_operation());
        outcome
    })
    .await
}

fn no_answer_error() -> StoreError {
    StoreError::Internal { reason: "an operation was left without an answer".into(), source: None }
}
