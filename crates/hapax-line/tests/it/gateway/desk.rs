use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_conformance::FaultyStore;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::{ItemId, QueueName};
use hapax_core::trace::{self, Traceparent};
use hapax_core::{Fence, ManualClock, Queue, Store};
use hapax_line::simulator::{AcceptedCall, SimulatedApi};
use hapax_line::{
    Backoff, ChannelSecrets, EventContext, EventHandlerError, Gateway, GatewayConfig, LineClient,
    LineEvent, LineEventHandler, LineMessage, SendError, SendStatus, WebhookStatus,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than the store's time that passes in `next_later` and `settled`.
pub(crate) const LEASE: Duration = Duration::from_secs(3600);
pub(crate) const REPLY_WINDOW: Duration = Duration::from_secs(50);
pub(crate) const RETENTION: Duration = Duration::from_secs(24 * 3600);
pub(crate) const USER: &str = "Uf00d0000000000000000000000000001";

/// A test's instruction to the bot about one event.
pub(crate) enum Order {
    Reply(&'static str, oneshot::Sender<Result<SendStatus, SendError>>),
    Push(&'static str, oneshot::Sender<Result<SendStatus, SendError>>),
    PushNamed(&'static str, &'static str, oneshot::Sender<Result<SendStatus, SendError>>),
    Say(&'static str, oneshot::Sender<Result<SendStatus, SendError>>),
    End(Result<(), EventHandlerError>),
    Panic,
}

/// An event that the bot holds until the test decides its outcome.
pub(crate) struct InHand {
    pub(crate) id: ItemId,
    pub(crate) event: LineEvent,
    pub(crate) attempt: u32,
    pub(crate) fence: Option<Fence>,
    pub(crate) trace: Option<Traceparent>,
    orders: mpsc::UnboundedSender<Order>,
}

impl InHand {
    pub(crate) fn order(&self, order: Order) {
        assert!(self.orders.send(order).is_ok(), "the bot waits");
    }

    pub(crate) fn done(self) {
        self.order(Order::End(Ok(())));
    }

    pub(crate) fn fails(self, failed: EventHandlerError) {
        self.order(Order::End(Err(failed)));
    }

    pub(crate) async fn reply(&self, text: &'static str) -> Result<SendStatus, SendError> {
        self.answer(|answer| Order::Reply(text, answer)).await
    }

    pub(crate) async fn push(&self, text: &'static str) -> Result<SendStatus, SendError> {
        self.answer(|answer| Order::Push(text, answer)).await
    }

    pub(crate) async fn push_named(
        &self,
        name: &'static str,
        text: &'static str,
    ) -> Result<SendStatus, SendError> {
        self.answer(|answer| Order::PushNamed(name, text, answer)).await
    }

    pub(crate) async fn say(&self, text: &'static str) -> Result<SendStatus, SendError> {
        self.answer(|answer| Order::Say(text, answer)).await
    }

    async fn answer(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<SendStatus, SendError>>) -> Order,
    ) -> Result<SendStatus, SendError> {
        let (answer, answered) = oneshot::channel();
        self.order(order(answer));
        answered.await.expect("the bot answers")
    }
}

struct Bot(mpsc::UnboundedSender<InHand>);

#[async_trait]
impl LineEventHandler for Bot {
    async fn handle(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        let (orders, mut given) = mpsc::unbounded_channel();
        let event = event.clone();
        let (id, attempt, fence) = (context.id(), context.attempt(), context.fence());
        let _ = self.0.send(InHand { id, event, attempt, fence, trace: trace::current(), orders });
        while let Some(order) = given.recv().await {
            match order {
                Order::Reply(text, to) => {
                    drop(to.send(context.reply(&[LineMessage::text(text)]).await))
                }
                Order::Push(text, to) => {
                    drop(to.send(context.push(&[LineMessage::text(text)]).await))
                }
                Order::PushNamed(name, text, to) => {
                    drop(to.send(context.push_named(name, &[LineMessage::text(text)]).await));
                }
                Order::Say(text, to) => {
                    drop(to.send(context.reply_or_push(&[LineMessage::text(text)]).await))
                }
                Order::End(result) => return result,
                Order::Panic => panic!("as planned"),
            }
        }
        std::future::pending().await
    }
}

/// A store, LINE's API, and a bot that the test controls.
pub(crate) struct Desk {
    pub(crate) api: SimulatedApi,
    pub(crate) store: FaultyStore,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) config: GatewayConfig,
    queue: QueueName,
    handed: mpsc::UnboundedReceiver<InHand>,
    hand: mpsc::UnboundedSender<InHand>,
}

/// A gateway in its own runtime, so that a test can kill it.
pub(crate) struct Running {
    pub(crate) gateway: Gateway,
    runtime: Option<Runtime>,
    work: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Running {
    /// Stops the gateway as a signal does, and waits until it has stopped.
    pub(crate) async fn stop(&mut self) {
        let (stop, work) = self.work.take().expect("it works");
        let _ = stop.send(());
        tokio::time::timeout(PATIENCE, work).await.expect("it stops").unwrap();
    }

    /// Kills the gateway and waits for its tasks to end: they would otherwise interfere with the
    /// rest of the test.
    pub(crate) fn kill(mut self) {
        let runtime = self.runtime.take().expect("it runs");
        // Shutting a runtime down blocks, which is not allowed inside another runtime, hence the
        // thread.
        let ending = std::thread::spawn(move || runtime.shutdown_timeout(PATIENCE));
        ending.join().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Desk {
    pub(crate) async fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let (hand, handed) = mpsc::unbounded_channel();
        // Leases follow the manual clock, so they expire only when the test advances it.
        let config = GatewayConfig::new()
            .backoff(Backoff::new(Duration::from_millis(1), Duration::from_secs(60)))
            .poll_interval(Duration::from_millis(10))
            .lease(LEASE)
            .retention(RETENTION)
            .reply_window(REPLY_WINDOW)
            // A stalled machine must not look like a store that does not answer.
            .store_timeout(PATIENCE);
        Self {
            api: SimulatedApi::start("127.0.0.1:0", "token").await.unwrap(),
            store: FaultyStore::new(Arc::new(MemoryStore::new(clock.clone()))),
            clock,
            config,
            queue: QueueName::new("line").unwrap(),
            handed,
            hand,
        }
    }

    pub(crate) fn start(&self) -> Running {
        let mut running = self.idle();
        let (stop, stopped) = oneshot::channel();
        let gateway = running.gateway.clone();
        let work = async move {
            gateway
                .run(async {
                    if stopped.await.is_err() {
                        std::future::pending().await
                    }
                })
                .await;
        };
        let work = running.runtime.as_ref().expect("it runs").spawn(work);
        running.work = Some((stop, work));
        running
    }

    /// A gateway that accepts webhooks and does not read its queue.
    pub(crate) fn idle(&self) -> Running {
        let client = LineClient::new(&self.api.base(), "token").unwrap().timeout(PATIENCE);
        let store: Arc<dyn Store> = Arc::new(self.store.clone());
        let bot = Arc::new(Bot(self.hand.clone()));
        let gateway = Gateway::new(store, secrets(), client, bot, self.config.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        Running { gateway, runtime: Some(runtime), work: None }
    }

    /// A gateway that has read its queue once, and reads it again only when something is stored:
    /// the next calls of the store are those that the test causes.
    pub(crate) async fn start_quietly(&mut self) -> Running {
        self.config = self.config.clone().poll_interval(PATIENCE * 10);
        let before = self.store.calls();
        let running = self.start();
        self.until(async || self.store.calls() > before).await;
        running
    }

    /// The next event that the bot gets.
    pub(crate) async fn next(&mut self) -> InHand {
        let next = tokio::time::timeout(PATIENCE, self.handed.recv()).await;
        next.expect("the bot gets an event").expect("the bot is there")
    }

    /// The next event that the bot gets, while the store's clock advances.
    pub(crate) async fn next_later(&mut self) -> InHand {
        let clock = self.clock.clone();
        let passing = async {
            loop {
                clock.advance(Duration::from_millis(20));
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! {
            next = self.next() => next,
            () = passing => unreachable!("it never ends"),
        }
    }

    pub(crate) async fn said(&self) -> AcceptedCall {
        self.api.next(PATIENCE).await.expect("something is said")
    }

    /// Advances the store's clock.
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Lets all leases expire, and the mark of a reply.
    pub(crate) fn outlive(&self) {
        self.pass(LEASE + Duration::from_secs(1));
    }

    pub(crate) fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// Waits until the queue contains nothing but this number of dead letters.
    pub(crate) async fn settled(&self, dead: u64) {
        self.until(async || {
            self.pass(Duration::from_millis(100));
            let depth = self.store.depth(self.queue(), None).await;
            depth.is_ok_and(|d| (d.waiting, d.in_flight, d.dead) == (0, 0, dead))
        })
        .await;
    }

    pub(crate) async fn until(&self, holds: impl AsyncFn() -> bool) {
        let all = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("it comes to that");
    }
}

impl Running {
    pub(crate) async fn tap(&self, events: &[Value]) -> WebhookStatus {
        let body = Bytes::from(json!({ "destination": "Uf00dbot", "events": events }).to_string());
        let signature = secrets().sign(&body);
        let gateway = self.gateway.clone();
        let taken = async move { gateway.receive(Some(&signature), &body).await };
        let taken = self.runtime.as_ref().expect("it runs").spawn(taken);
        tokio::time::timeout(PATIENCE, taken).await.expect("an answer").unwrap()
    }
}

pub(crate) fn secrets() -> ChannelSecrets {
    ChannelSecrets::new("secret").unwrap()
}
