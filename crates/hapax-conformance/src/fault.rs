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

/// What goes wrong with one store call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The question is lost: nothing happens, and the caller gets an error.
    LostQuestion,
    /// The answer is lost: it happens, and the caller gets an error.
    LostAnswer,
    /// It happens, and the caller waits for ever.
    NoAnswer,
    /// It happens twice; the caller gets the second answer.
    Twice,
    /// The store thinks about it for this long before it acts.
    Stall(Duration),
}

/// Which calls faults may meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Those of [`Claims`].
    Claims,
    /// Those of [`Queue`].
    Queue,
    /// All others.
    Rest,
}

/// A store on which things go wrong as planned: each call takes the next [`Fault`] of the plan, and
/// what is planned last goes on for ever where [`Faulty::always`] said so.
///
/// ```
/// # use std::sync::Arc;
/// use hapax_conformance::{Fault, Faulty};
/// use hapax_core::{memory::MemoryStore, ClaimRequest, Claimed, Claims, Key, Tenant};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Faulty::new(Arc::new(MemoryStore::default()));
/// let key = Key::lock(&Tenant::default(), "k")?;
/// let ask = ClaimRequest::new(std::time::Duration::from_secs(5));
/// store.plan([Fault::LostAnswer]);
/// assert!(store.claim(&key, &ask).await.is_err());
/// // It happened all the same; the same token asks again and has it.
/// assert!(matches!(store.claim(&key, &ask).await?, Claimed::Granted { attempt: 1, .. }));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Faulty {
    store: Arc<dyn Store>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Default)]
struct Plan {
    next: VecDeque<Fault>,
    always: Option<Fault>,
    only: Option<Part>,
    deaf: bool,
    calls: u64,
}

impl Faulty {
    /// Nothing goes wrong yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, plan: Arc::default() }
    }

    /// What goes wrong with the next calls, one each.
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.locked(|plan| plan.next.extend(faults));
    }

    /// What goes wrong with every call that has no plan; `None` ends it.
    pub fn always(&self, fault: Option<Fault>) {
        self.locked(|plan| plan.always = fault);
    }

    /// From now on faults meet calls of this part alone; `None` is all.
    pub fn only(&self, part: Option<Part>) {
        self.locked(|plan| plan.only = part);
    }

    /// From now on no hint about a job is heard.
    pub fn deafen(&self) {
        self.locked(|plan| plan.deaf = true);
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.locked(|plan| plan.calls)
    }

    fn locked<T>(&self, act: impl FnOnce(&mut Plan) -> T) -> T {
        act(&mut self.plan.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn call<T, F>(&self, part: Part, act: impl Fn() -> F) -> Result<T, StoreError>
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
            Fault::LostQuestion => Err(lost("the question was lost on the way")),
            Fault::LostAnswer => {
                act().await?;
                Err(lost("the answer was lost on the way"))
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
impl Claims for Faulty {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.call(Part::Claims, || self.store.claim(key, ask)).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.call(Part::Claims, || self.store.extend(key, token, lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        self.call(Part::Claims, || self.store.settle(key, token, value.clone())).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.call(Part::Claims, || self.store.give_back(key, token, how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.call(Part::Claims, || self.store.look(key)).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.store.watch(key)
    }
}

#[async_trait]
impl Records for Faulty {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.call(Part::Rest, || self.store.get(key)).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        self.call(Part::Rest, || self.store.put(key, value.clone(), expect, ttl)).await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        self.call(Part::Rest, || self.store.delete(key, expect)).await
    }
}

#[async_trait]
impl Log for Faulty {
    async fn append(
        &self,
        events: &[LogEvent],
        keep: &LogRetention,
    ) -> Result<Vec<Appended>, StoreError> {
        self.call(Part::Rest, || self.store.append(events, keep)).await
    }

    async fn attach(
        &self,
        job: &Key,
        after: u64,
        at_most: usize,
    ) -> Result<Option<Attached>, StoreError> {
        self.call(Part::Rest, || self.store.attach(job, after, at_most)).await
    }

    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> Result<Vec<PartitionTail>, StoreError> {
        self.call(Part::Rest, || self.store.tail(from, at_most)).await
    }

    fn partitions(&self) -> u16 {
        self.store.partitions()
    }

    fn listen(&self, job: &Key) -> Watch {
        if self.locked(|plan| plan.deaf) { Watch::never() } else { self.store.listen(job) }
    }
}

#[async_trait]
impl Queue for Faulty {
    async fn enqueue(
        &self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError> {
        self.call(Part::Queue, || self.store.enqueue(queue, items)).await
    }

    async fn lease(
        &self,
        queue: &QueueName,
        take: &LeaseRequest,
    ) -> Result<Vec<LeasedItem>, StoreError> {
        self.call(Part::Queue, || self.store.lease(queue, take)).await
    }

    async fn renew(
        &self,
        queue: &QueueName,
        token: &Token,
        lease: Duration,
    ) -> Result<u64, StoreError> {
        self.call(Part::Queue, || self.store.renew(queue, token, lease)).await
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> Result<Vec<Resolved>, StoreError> {
        self.call(Part::Queue, || self.store.resolve(queue, token, outcomes)).await
    }

    async fn depth(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
    ) -> Result<QueueDepth, StoreError> {
        self.call(Part::Queue, || self.store.depth(queue, whose)).await
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        after: Option<ItemId>,
        at_most: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.call(Part::Queue, || self.store.dead(queue, whose, after, at_most)).await
    }

    async fn requeue(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.call(Part::Queue, || self.store.requeue(queue, whose, id)).await
    }

    async fn discard(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.call(Part::Queue, || self.store.discard(queue, whose, id)).await
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        self.store.arrivals(queue)
    }
}

#[async_trait]
impl Oversight for Faulty {
    async fn list(&self, list: &ClaimQuery) -> Result<ClaimPage, StoreError> {
        self.call(Part::Rest, || self.store.list(list)).await
    }
}

#[async_trait]
impl Store for Faulty {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.call(Part::Rest, || self.store.ping()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.call(Part::Rest, || self.store.examine()).await
    }

    async fn sweep(&self, at_most: u32) -> Result<u64, StoreError> {
        self.call(Part::Rest, || self.store.sweep(at_most)).await
    }
}
