//! A scripted sink, and helpers for queues.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::{ItemId, QueueDepth, QueueItem, QueueName};
use hapax_core::{Queue, RuntimeClock, Tenant};
use hapax_relay::{Backoff, DeliveryError, OutboundMessage, Relay, RelayConfig, Sink};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

/// The timeout for anything that should happen soon: a busy machine may stall for seconds, and its
/// disk more than once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

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
    checks: Mutex<usize>,
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
            checks: Mutex::default(),
        }
    }

    pub(crate) fn takes_all() -> Self {
        Self::new(|_| async { Ok(()) })
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

    pub(crate) fn calls_for(&self, payload: &str) -> usize {
        self.begun().iter().filter(|call| call.payload == payload).count()
    }

    pub(crate) fn checks(&self) -> usize {
        *self.checks.lock().unwrap()
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
        let nth = {
            let mut checks = self.checks.lock().unwrap();
            *checks += 1;
            *checks - 1
        };
        (self.check)(nth)
    }
}

/// A running relay.
pub(crate) struct Working {
    stop: Option<oneshot::Sender<()>>,
    heard: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Working {
    pub(crate) fn start(queue: Arc<dyn Queue>, sink: Arc<dyn Sink>, settings: RelayConfig) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let heard = Arc::new(Semaphore::new(0));
        let relay = Relay::with(queue, sink, settings);
        let stopped = {
            let heard = heard.clone();
            async move {
                drop(stopped.await);
                heard.add_permits(1);
            }
        };
        Self { stop: Some(stop), heard, task: tokio::spawn(relay.run(stopped)) }
    }

    /// Tells the relay to stop, and returns when the relay has heard that, before it has stopped.
    /// In a runtime of one thread the relay starts nothing new from then on.
    pub(crate) async fn begin_to_stop(&mut self) {
        drop(self.stop.take());
        self.heard.acquire().await.unwrap().forget();
    }

    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, &mut self.task).await.expect("the relay stops").unwrap();
    }

    /// Ends the relay as `kill -9` would.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
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
        .lease(PATIENCE * 2)
        .send_timeout(PATIENCE / 3)
        .store_timeout(PATIENCE / 3)
        .shutdown_timeout(PATIENCE / 3)
}

pub(crate) fn item(payload: &str) -> QueueItem {
    QueueItem::new(&Tenant::default(), "orders", payload.to_owned())
}

pub(crate) async fn enqueue(queue: &dyn Queue, items: &[QueueItem]) {
    queue.enqueue(&QueueName::outbox(), items).await.unwrap();
}

pub(crate) async fn depth(queue: &dyn Queue) -> QueueDepth {
    queue.depth(&QueueName::outbox(), None).await.unwrap()
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
    tokio::time::timeout(PATIENCE, waiting).await.is_ok()
}
