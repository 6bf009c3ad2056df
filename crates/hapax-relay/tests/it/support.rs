//! A scripted sink, and helpers for queues.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::{DeadLetter, DeadQuery, ItemId, QueueDepth, QueueItem, QueueName};
use hapax_core::{Queue, RuntimeClock, Tenant};
use hapax_relay::{Backoff, DeliveryError, OutboundMessage, Relay, RelayConfig, Sink};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// The timeout for anything that should happen soon: a busy machine may stall for seconds, and its
/// disk more than once.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

type Answering = Pin<Box<dyn Future<Output = Result<(), DeliveryError>> + Send>>;

/// One call of the sink.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) id: ItemId,
    pub(crate) payload: String,
    pub(crate) key: Option<String>,
    pub(crate) attempt: u32,
}

/// A sink that answers as a test says, and records its calls.
pub(crate) struct Script {
    answer: Box<dyn Fn(Call) -> Answering + Send + Sync>,
    check: Box<dyn Fn(usize) -> Result<(), DeliveryError> + Send + Sync>,
    begun: Mutex<Vec<Call>>,
    delivered: Mutex<Vec<Call>>,
    checks: AtomicUsize,
}

impl Script {
    pub(crate) fn new<F>(answer: impl Fn(Call) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), DeliveryError>> + Send + 'static,
    {
        Self {
            answer: Box::new(move |call| Box::pin(answer(call))),
            check: Box::new(|_| Ok(())),
            begun: Mutex::default(),
            delivered: Mutex::default(),
            checks: AtomicUsize::new(0),
        }
    }

    pub(crate) fn takes_all() -> Self {
        Self::new(|_| async {
            tokio::task::yield_now().await;
            Ok(())
        })
    }

    /// Takes one message for each permit.
    pub(crate) fn takes_with(permits: &Arc<Semaphore>) -> Self {
        let permits = permits.clone();
        Self::new(move |_| {
            let permits = permits.clone();
            async move {
                permits.acquire().await.unwrap().forget();
                Ok(())
            }
        })
    }

    /// Takes everything but rows of this payload, which it refuses.
    pub(crate) fn refuses(payload: &'static str) -> Self {
        Self::new(move |call| async move {
            tokio::task::yield_now().await;
            if call.payload == payload { Err(DeliveryError::refused("poison")) } else { Ok(()) }
        })
    }

    /// Sets the answer to the nth check, from 0.
    pub(crate) fn check(
        mut self,
        check: impl Fn(usize) -> Result<(), DeliveryError> + Send + Sync + 'static,
    ) -> Self {
        self.check = Box::new(check);
        self
    }

    pub(crate) fn begun(&self) -> Vec<Call> {
        self.begun.lock().unwrap().clone()
    }

    pub(crate) fn delivered(&self) -> Vec<Call> {
        self.delivered.lock().unwrap().clone()
    }

    /// The payloads delivered, in order.
    pub(crate) fn payloads(&self) -> Vec<String> {
        self.delivered().into_iter().map(|call| call.payload).collect()
    }

    /// Asserts that the [numbered] rows of each key were delivered in order.
    pub(crate) fn assert_order_of_keys(&self) {
        let mut last: HashMap<String, u32> = HashMap::new();
        for Call { key, payload, .. } in self.delivered() {
            let Ok(n) = payload.parse() else { continue };
            let before = last.insert(key.unwrap(), n);
            assert!(before.is_none_or(|before| before < n), "{n} came after {before:?}");
        }
    }

    pub(crate) fn calls_for(&self, payload: &str) -> usize {
        self.begun().iter().filter(|call| call.payload == payload).count()
    }

    pub(crate) fn checks(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Sink for Script {
    fn name(&self) -> &'static str {
        "script"
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        let call = Call {
            id: message.item.id,
            payload: String::from_utf8(message.item.payload.to_vec()).unwrap(),
            key: message.item.key.as_deref().map(str::to_owned),
            attempt: message.attempt,
        };
        self.begun.lock().unwrap().push(call.clone());
        (self.answer)(call.clone()).await?;
        self.delivered.lock().unwrap().push(call);
        Ok(())
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        (self.check)(self.checks.fetch_add(1, Ordering::SeqCst))
    }
}

/// Counts the sends of a real sink.
pub(crate) struct CountedSink<S> {
    sink: S,
    sends: AtomicUsize,
}

impl<S> CountedSink<S> {
    pub(crate) fn new(sink: S) -> Arc<Self> {
        Arc::new(Self { sink, sends: AtomicUsize::new(0) })
    }

    pub(crate) fn sends(&self) -> usize {
        self.sends.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl<S: Sink> Sink for CountedSink<S> {
    fn name(&self) -> &'static str {
        self.sink.name()
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        self.sends.fetch_add(1, Ordering::SeqCst);
        self.sink.send(message).await
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        self.sink.check().await
    }

    fn max_in_flight(&self) -> usize {
        self.sink.max_in_flight()
    }
}

/// Runs a relay to a sink that takes nothing, until each row was sent more often than its attempts;
/// then `makes_room`, and all rows arrive.
pub(crate) async fn waits_for_room<S: Sink>(
    store: Arc<MemoryStore>,
    sink: S,
    makes_room: impl AsyncFnOnce(),
) {
    let sink = CountedSink::new(sink);
    let relay = Working::start(store.clone(), sink.clone(), brisk());
    until("many tries, or a dead letter", async || {
        sink.sends() >= 12 || depth(&*store).await.dead > 0
    })
    .await;
    assert_eq!(dead(&*store).await, []);
    makes_room().await;
    drained(&*store).await;
    relay.stop().await;
    assert_eq!(dead(&*store).await, []);
}

/// A relay or a consumer that runs until the test stops it.
pub(crate) struct Working {
    stop: Option<oneshot::Sender<()>>,
    heard: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Working {
    pub(crate) fn start(queue: Arc<dyn Queue>, sink: Arc<dyn Sink>, settings: RelayConfig) -> Self {
        Self::run(|stop| Relay::with(queue, sink, settings).run(stop))
    }

    /// Runs what `work` makes of the signal to stop.
    pub(crate) fn run<F>(work: impl FnOnce(Pin<Box<dyn Future<Output = ()> + Send>>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let heard = Arc::new(Semaphore::new(0));
        let hears = heard.clone();
        let stopped = async move {
            drop(stopped.await);
            hears.add_permits(1);
        };
        Self { stop: Some(stop), heard, task: tokio::spawn(work(Box::pin(stopped))) }
    }

    /// Tells the relay to stop, and returns when the relay has heard that, before it has stopped.
    /// In a runtime of one thread the relay starts nothing new from then on.
    pub(crate) async fn begin_to_stop(&mut self) {
        drop(self.stop.take());
        self.heard.acquire().await.unwrap().forget();
    }

    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(WAIT_TIMEOUT, &mut self.task).await.expect("it stops").unwrap();
    }

    /// Ends the relay as `kill -9` would.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

/// Runs a relay until there are so many dead letters, and no other row waits or is in flight.
pub(crate) async fn drain(
    store: &Arc<impl Queue + 'static>,
    sink: Arc<dyn Sink>,
    settings: RelayConfig,
    dead: u64,
) {
    let relay = Working::start(store.clone(), sink, settings);
    until("the dead letters", async || depth(&**store).await.dead == dead).await;
    drained(&**store).await;
    relay.stop().await;
    assert_eq!(depth(&**store).await.dead, dead);
}

/// Sends 600 rows of seven keys to a broker that is killed and restarted in the middle.
pub(crate) async fn outlast_a_kill(
    sink: impl Sink,
    kill: impl FnOnce(),
    restart: impl AsyncFnOnce(),
) -> Vec<QueueItem> {
    let (store, rows) = (Arc::new(MemoryStore::default()), numbered(600, 7));
    let relay = Working::start(store.clone(), Arc::new(sink), brisk().max_batch(50));
    enqueue(&*store, &rows[..300]).await;
    until("some arrived", async || {
        let depth = depth(&*store).await;
        depth.waiting + depth.in_flight < 280
    })
    .await;
    kill();
    enqueue(&*store, &rows[300..]).await;
    // The length of the outage. The test is right with any: `drained` waits for the end.
    tokio::time::sleep(Duration::from_millis(100)).await;
    restart().await;
    drained(&*store).await;
    relay.stop().await;
    assert_eq!(depth(&*store).await.dead, 0);
    rows
}

/// A store whose clock follows the runtime's clock, which the tests of leases pause: a stalled
/// machine then lets no lease expire.
pub(crate) fn in_virtual_time() -> MemoryStore {
    MemoryStore::new(Arc::new(RuntimeClock::default()))
}

/// Short waits, for fast tests; long limits, so that a stalled machine uses up no lease and no
/// attempt.
pub(crate) fn brisk() -> RelayConfig {
    RelayConfig::new()
        .backoff(Backoff::new(Duration::from_millis(5), Duration::from_millis(40)))
        .poll_interval(Duration::from_millis(10))
        .max_attempts(3)
        .lease(WAIT_TIMEOUT * 2)
        .send_timeout(WAIT_TIMEOUT / 3)
        .store_timeout(WAIT_TIMEOUT / 3)
        .shutdown_timeout(WAIT_TIMEOUT / 3)
}

pub(crate) fn item(payload: &str) -> QueueItem {
    QueueItem::new(&Tenant::default(), "orders", payload.to_owned())
}

/// Rows with the payloads 0, 1, 2 and so on, in turn of the keys `k0`, `k1` and so on.
pub(crate) fn numbered(rows: usize, keys: usize) -> Vec<QueueItem> {
    (0..rows).map(|n| item(&n.to_string()).key(&format!("k{}", n % keys))).collect()
}

/// A store whose outbox holds these rows.
pub(crate) async fn stored(rows: &[QueueItem]) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::default());
    enqueue(&*store, rows).await;
    store
}

pub(crate) async fn enqueue(queue: &dyn Queue, items: &[QueueItem]) {
    queue.enqueue(&QueueName::outbox(), items).await.unwrap();
}

pub(crate) async fn depth(queue: &dyn Queue) -> QueueDepth {
    queue.depth(&QueueName::outbox(), None).await.unwrap()
}

pub(crate) async fn dead(queue: &dyn Queue) -> Vec<DeadLetter> {
    queue.dead(&QueueName::outbox(), None, &DeadQuery::new(10)).await.unwrap()
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, reached: impl AsyncFnMut() -> bool) {
    assert!(comes_true(reached).await, "waited in vain: {what}");
}

/// Waits until no row is waiting or in flight.
pub(crate) async fn drained(queue: &dyn Queue) {
    let is_empty = async || {
        let depth = depth(queue).await;
        depth.waiting == 0 && depth.in_flight == 0
    };
    assert!(comes_true(is_empty).await, "never empty: {:?}", depth(queue).await);
}

async fn comes_true(mut reached: impl AsyncFnMut() -> bool) -> bool {
    let waiting = async {
        while !reached().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, waiting).await.is_ok()
}
