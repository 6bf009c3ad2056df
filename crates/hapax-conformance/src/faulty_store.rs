use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::log::{Appended, Attached, LogEvent, LogRetention, PartitionTail, TailPosition};
use hapax_core::queue::{
    DeadLetter, Enqueued, ItemId, ItemOutcome, LeaseRequest, LeasedItem, QueueDepth, QueueItem,
    QueueName, Resolved,
};
use hapax_core::{
    ClaimPage, ClaimQuery, ClaimRequest, ClaimView, Claimed, Claims, Deleted, Expect, Finding,
    GiveBack, Key, Log, Oversight, Put, Queue, Record, Records, Step, Store, StoreError, Tenant,
    Token, Watch,
};

/// The fault of one store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// The request is lost: the call is not executed, and the caller gets an error.
    LostQuestion,
    /// The reply is lost: the call is executed, and the caller gets an error.
    LostAnswer,
    /// The call is executed, and the caller never gets a reply.
    NoAnswer,
    /// The call is executed twice, and the caller gets the second reply.
    Twice,
    /// The call is executed after this delay.
    Stall(Duration),
}

/// The calls that may get faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorePart {
    /// Calls of [`Claims`].
    Claims,
    /// Calls of [`Queue`].
    Queue,
    /// All other calls.
    Rest,
}

/// Injects faults into the calls of another store: each call gets the next planned [`Fault`], or
/// that of [`FaultyStore::always`] if none is planned.
///
/// ```
/// # use std::sync::Arc;
/// use hapax_conformance::{Fault, FaultyStore};
/// use hapax_core::{memory::MemoryStore, ClaimRequest, Claimed, Claims, Key, Tenant};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = FaultyStore::new(Arc::new(MemoryStore::default()));
/// let key = Key::lock(&Tenant::default(), "k")?;
/// let ask = ClaimRequest::new(std::time::Duration::from_secs(5));
/// store.plan([Fault::LostAnswer]);
/// assert!(store.claim(&key, &ask).await.is_err());
/// // The claim was executed: repeated with the same token, it is the same grant.
/// assert!(matches!(store.claim(&key, &ask).await?, Claimed::Granted { attempt: 1, .. }));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FaultyStore {
    store: Arc<dyn Store>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    next: VecDeque<Fault>,
    always: Option<Fault>,
    only: Option<StorePart>,
    hints_suppressed: bool,
    calls: u64,
}

impl FaultyStore {
    /// Wraps a store; no fault is planned yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, plan: Arc::default() }
    }

    /// Plans the faults of the next calls, one each.
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.locked(|plan| plan.next.extend(faults));
    }

    /// Sets the fault of every call without a planned one; `None` ends it.
    pub fn always(&self, fault: Option<Fault>) {
        self.locked(|plan| plan.always = fault);
    }

    /// Restricts faults to the calls of this part; `None` allows all.
    pub fn only(&self, part: Option<StorePart>) {
        self.locked(|plan| plan.only = part);
    }

    /// Suppresses all further wake-ups of jobs' listeners.
    pub fn suppress_hints(&self) {
        self.locked(|plan| plan.hints_suppressed = true);
    }

    /// The number of calls so far.
    pub fn calls(&self) -> u64 {
        self.locked(|plan| plan.calls)
    }

    fn locked<T>(&self, act: impl FnOnce(&mut Plan) -> T) -> T {
        act(&mut self.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn call<T, F>(&self, part: StorePart, act: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let fault = self.locked(|plan| {
            plan.calls += 1;
            if plan.only.is_some_and(|only| only != part) {
                return Fault::None;
            }
            plan.next.pop_front().or(plan.always).unwrap_or(Fault::None)
        });
        let lost = |what: &str| StoreError::Unavailable { reason: what.into(), source: None };
        match fault {
            Fault::None => act().await,
            Fault::LostQuestion => Err(lost("the request was lost")),
            Fault::LostAnswer => {
                act().await?;
                Err(lost("the reply was lost"))
            }
            Fault::NoAnswer => {
                act().await?;
                std::future::pending().await
            }
            Fault::Twice => {
                act().await?;
                act().await
            }
            Fault::Stall(time) => {
                tokio::time::sleep(time).await;
                act().await
            }
        }
    }
}

#[async_trait]
impl Claims for FaultyStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.call(StorePart::Claims, || self.store.claim(key, ask)).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.call(StorePart::Claims, || self.store.extend(key, token, lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        self.call(StorePart::Claims, || self.store.settle(key, token, value.clone())).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.call(StorePart::Claims, || self.store.give_back(key, token, how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.call(StorePart::Claims, || self.store.look(key)).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.store.watch(key)
    }
}

#[async_trait]
impl Records for FaultyStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.call(StorePart::Rest, || self.store.get(key)).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        self.call(StorePart::Rest, || self.store.put(key, value.clone(), expect, ttl)).await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        self.call(StorePart::Rest, || self.store.delete(key, expect)).await
    }
}

#[async_trait]
impl Log for FaultyStore {
    async fn append(
        &self,
        events: &[LogEvent],
        keep: &LogRetention,
    ) -> Result<Vec<Appended>, StoreError> {
        self.call(StorePart::Rest, || self.store.append(events, keep)).await
    }

    async fn attach(
        &self,
        job: &Key,
        after: u64,
        at_most: usize,
    ) -> Result<Option<Attached>, StoreError> {
        self.call(StorePart::Rest, || self.store.attach(job, after, at_most)).await
    }

    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> Result<Vec<PartitionTail>, StoreError> {
        self.call(StorePart::Rest, || self.store.tail(from, at_most)).await
    }

    fn partitions(&self) -> u16 {
        self.store.partitions()
    }

    fn listen(&self, job: &Key) -> Watch {
        if self.locked(|plan| plan.hints_suppressed) {
            Watch::never()
        } else {
            self.store.listen(job)
        }
    }
}

#[async_trait]
impl Queue for FaultyStore {
    async fn enqueue(
        &self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError> {
        self.call(StorePart::Queue, || self.store.enqueue(queue, items)).await
    }

    async fn lease(
        &self,
        queue: &QueueName,
        take: &LeaseRequest,
    ) -> Result<Vec<LeasedItem>, StoreError> {
        self.call(StorePart::Queue, || self.store.lease(queue, take)).await
    }

    async fn renew(
        &self,
        queue: &QueueName,
        token: &Token,
        lease: Duration,
    ) -> Result<u64, StoreError> {
        self.call(StorePart::Queue, || self.store.renew(queue, token, lease)).await
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> Result<Vec<Resolved>, StoreError> {
        self.call(StorePart::Queue, || self.store.resolve(queue, token, outcomes)).await
    }

    async fn depth(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
    ) -> Result<QueueDepth, StoreError> {
        self.call(StorePart::Queue, || self.store.depth(queue, whose)).await
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        after: Option<ItemId>,
        at_most: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.call(StorePart::Queue, || self.store.dead(queue, whose, after, at_most)).await
    }

    async fn requeue(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.call(StorePart::Queue, || self.store.requeue(queue, whose, id)).await
    }

    async fn discard(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.call(StorePart::Queue, || self.store.discard(queue, whose, id)).await
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        self.store.arrivals(queue)
    }
}

#[async_trait]
impl Oversight for FaultyStore {
    async fn list(&self, list: &ClaimQuery) -> Result<ClaimPage, StoreError> {
        self.call(StorePart::Rest, || self.store.list(list)).await
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.call(StorePart::Rest, || self.store.ping()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.call(StorePart::Rest, || self.store.examine()).await
    }

    async fn sweep(&self, at_most: u32) -> Result<u64, StoreError> {
        self.call(StorePart::Rest, || self.store.sweep(at_most)).await
    }
}
