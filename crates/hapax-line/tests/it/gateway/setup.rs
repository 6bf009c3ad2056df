use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_conformance::FaultyStore;
use hapax_core::command::{CommandView, Commands};
use hapax_core::memory::MemoryStore;
use hapax_core::queue::{ItemId, QueueName};
use hapax_core::trace::{self, Traceparent};
use hapax_core::{Fence, ManualClock, Operation, Queue, Store, Tenant};
use hapax_line::simulator::{AcceptedCall, SimulatedApi};
use hapax_line::{
    Backoff, ChannelSecrets, EventContext, EventHandlerError, Gateway, GatewayConfig, LineClient,
    LineEvent, LineEventHandler, LineMessage, SendError, SendStatus, WebhookStatus,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than the store's time that passes in `next_later` and `settled`.
pub(crate) const LEASE: Duration = Duration::from_secs(3600);
pub(crate) const REPLY_WINDOW: Duration = Duration::from_secs(50);
pub(crate) const RETENTION: Duration = Duration::from_secs(24 * 3600);
pub(crate) const USER: &str = "Uf00d0000000000000000000000000001";

pub(crate) type Sent = Result<SendStatus, SendError>;

/// A test's instruction to the bot about one event.
pub(crate) enum Order {
    Send(SendBy, &'static str, oneshot::Sender<Sent>),
    End(Result<(), EventHandlerError>),
    Panic,
}

/// How the bot sends a text.
pub(crate) enum SendBy {
    Reply,
    Push,
    PushNamed(&'static str),
    ReplyOrPush,
}

/// An event that the bot handles until the test decides its outcome.
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

    pub(crate) async fn reply(&self, text: &'static str) -> Sent {
        self.send(SendBy::Reply, text).await
    }

    pub(crate) async fn push(&self, text: &'static str) -> Sent {
        self.send(SendBy::Push, text).await
    }

    pub(crate) async fn reply_or_push(&self, text: &'static str) -> Sent {
        self.send(SendBy::ReplyOrPush, text).await
    }

    pub(crate) async fn send(&self, by: SendBy, text: &'static str) -> Sent {
        let (answer, answered) = oneshot::channel();
        self.order(Order::Send(by, text, answer));
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
                Order::Send(by, text, answer) => {
                    let text = [LineMessage::text(text)];
                    let sent = match by {
                        SendBy::Reply => context.reply(&text).await,
                        SendBy::Push => context.push(&text).await,
                        SendBy::PushNamed(name) => context.push_named(name, &text).await,
                        SendBy::ReplyOrPush => context.reply_or_push(&text).await,
                    };
                    let _ = answer.send(sent);
                }
                Order::End(result) => return result,
                Order::Panic => panic!("as planned"),
            }
        }
        std::future::pending().await
    }
}

/// A store, LINE's API, and a bot that the test controls.
pub(crate) struct Setup {
    pub(crate) api: SimulatedApi,
    pub(crate) store: FaultyStore,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) config: GatewayConfig,
    pub(crate) secret: &'static str,
    in_hand: mpsc::UnboundedReceiver<InHand>,
    bot: mpsc::UnboundedSender<InHand>,
}

/// A gateway in its own runtime, so that a test can kill it.
pub(crate) struct Running {
    pub(crate) gateway: Gateway,
    secret: &'static str,
    runtime: Option<Runtime>,
    work: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Running {
    /// Sends a signed webhook with these events.
    pub(crate) async fn tap(&self, events: &[Value]) -> WebhookStatus {
        self.receive(json!({ "destination": "Uf00dbot", "events": events }).to_string()).await
    }

    /// Sends a signed body.
    pub(crate) async fn receive(&self, body: impl Into<Bytes>) -> WebhookStatus {
        let (gateway, body, trace) = (self.gateway.clone(), body.into(), trace::current());
        let signature = secrets(self.secret).sign(&body);
        let received = async move { gateway.receive(Some(&signature), &body).await };
        let runtime = self.runtime.as_ref().expect("it runs");
        let received = runtime.spawn(trace::within(trace, received));
        tokio::time::timeout(WAIT_TIMEOUT, received).await.expect("an answer").unwrap()
    }

    /// Stops the gateway as a signal does, and waits until it has stopped.
    pub(crate) async fn stop(&mut self) {
        let (stop, work) = self.work.take().expect("it works");
        let _ = stop.send(());
        tokio::time::timeout(WAIT_TIMEOUT, work).await.expect("it stops").unwrap();
    }

    /// Kills the gateway and waits for its tasks to end: they would otherwise interfere with the
    /// rest of the test.
    pub(crate) fn kill(mut self) {
        let runtime = self.runtime.take().expect("it runs");
        // Shutting a runtime down blocks, which is not allowed inside another runtime, hence the
        // thread.
        let ending = std::thread::spawn(move || runtime.shutdown_timeout(WAIT_TIMEOUT));
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

impl Setup {
    pub(crate) async fn new() -> Self {
        let clock = Arc::new(ManualClock::default());
        let (bot, in_hand) = mpsc::unbounded_channel();
        // Leases follow the manual clock, so they expire only when the test advances it.
        let config = GatewayConfig::new()
            .backoff(Backoff::new(Duration::from_millis(1), Duration::from_secs(60)))
            .poll_interval(Duration::from_millis(10))
            .lease(LEASE)
            .retention(RETENTION)
            .reply_window(REPLY_WINDOW)
            // The calls of the store are those that the test causes.
            .pausable(false)
            // A stalled machine must not look like a store that does not answer.
            .store_timeout(WAIT_TIMEOUT);
        Self {
            api: SimulatedApi::start("127.0.0.1:0", "token").await.unwrap(),
            store: FaultyStore::new(Arc::new(MemoryStore::new(clock.clone()))),
            clock,
            config,
            secret: "secret",
            in_hand,
            bot,
        }
    }

    /// A setup with a changed configuration.
    pub(crate) async fn with(change: impl FnOnce(GatewayConfig) -> GatewayConfig) -> Self {
        let mut setup = Self::new().await;
        setup.configure(change);
        setup
    }

    /// Changes the configuration of the gateways that start from now on.
    pub(crate) fn configure(&mut self, change: impl FnOnce(GatewayConfig) -> GatewayConfig) {
        self.config = change(self.config.clone());
    }

    pub(crate) fn start(&self) -> Running {
        let mut running = self.idle();
        let (stop, stopped) = oneshot::channel();
        let gateway = running.gateway.clone();
        let stopped = async {
            if stopped.await.is_err() {
                std::future::pending().await
            }
        };
        let work = async move { gateway.run(stopped).await };
        let work = running.runtime.as_ref().expect("it runs").spawn(work);
        running.work = Some((stop, work));
        running
    }

    /// A gateway, and this event, which its bot has got from it.
    pub(crate) async fn start_with(&mut self, event: Value) -> (Running, InHand) {
        let running = self.start();
        running.tap(&[event]).await;
        (running, self.next().await)
    }

    /// Kills a gateway; another one, and the event that its bot has got after the leases expired.
    pub(crate) async fn take_over(&mut self, killed: Running) -> (Running, InHand) {
        killed.kill();
        let another = self.start();
        self.outlive();
        (another, self.next().await)
    }

    /// A gateway that accepts webhooks and does not read its queue.
    pub(crate) fn idle(&self) -> Running {
        let client = LineClient::new(&self.api.base(), "token").unwrap().timeout(WAIT_TIMEOUT);
        let store: Arc<dyn Store> = Arc::new(self.store.clone());
        let bot = Arc::new(Bot(self.bot.clone()));
        let gateway = Gateway::new(store, secrets(self.secret), client, bot, self.config.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        Running { gateway, secret: self.secret, runtime: Some(runtime), work: None }
    }

    /// A gateway that has read its queue once, and reads it again only when something is stored:
    /// the next calls of the store are those that the test causes.
    pub(crate) async fn start_quietly(&mut self) -> Running {
        self.configure(|config| config.poll_interval(WAIT_TIMEOUT * 10));
        let before = self.store.calls();
        let running = self.start();
        self.until(async || self.store.calls() > before).await;
        running
    }

    /// The next event that the bot gets.
    pub(crate) async fn next(&mut self) -> InHand {
        let next = tokio::time::timeout(WAIT_TIMEOUT, self.in_hand.recv()).await;
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

    /// The next message that LINE accepted.
    pub(crate) async fn accepted(&self) -> AcceptedCall {
        self.api.next(WAIT_TIMEOUT).await.expect("a message is sent")
    }

    /// Asserts that LINE accepted so many calls, and that none violated its rules.
    pub(crate) fn assert_accepted(&self, calls: usize) {
        assert_eq!(self.api.violations(), Vec::<String>::new());
        assert_eq!(self.api.accepted_calls().len(), calls);
    }

    /// Advances the store's clock.
    pub(crate) fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Lets all leases expire, and the mark of a reply.
    pub(crate) fn outlive(&self) {
        self.pass(LEASE + Duration::from_secs(1));
    }

    pub(crate) fn queue(&self) -> QueueName {
        secrets(self.secret).queue()
    }

    /// Waits until the queue contains nothing but this number of dead letters.
    pub(crate) async fn settled(&self, dead: u64) {
        self.until(async || {
            self.pass(Duration::from_millis(100));
            let depth = self.store.depth(&self.queue(), None).await;
            depth.is_ok_and(|d| (d.waiting, d.in_flight, d.dead) == (0, 0, dead))
        })
        .await;
    }

    /// Waits until the queue has so many waiting and leased events.
    pub(crate) async fn queued(&self, waiting: u64, in_flight: u64) {
        self.until(async || {
            let depth = self.store.depth(&self.queue(), None).await.unwrap();
            (depth.waiting, depth.in_flight) == (waiting, in_flight)
        })
        .await;
    }

    /// The command of an event; `None` where the event was not begun.
    pub(crate) async fn command(&self, id: ItemId) -> Option<CommandView> {
        let commands = Commands::new(Arc::new(self.store.clone()));
        commands.look(Operation("line"), &id.to_string()).await.unwrap()
    }

    pub(crate) async fn until(&self, holds: impl AsyncFn() -> bool) {
        let all = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, all).await.expect("it comes to that");
    }
}

pub(crate) fn secrets(secret: &str) -> ChannelSecrets {
    ChannelSecrets::new(secret).unwrap()
}

/// The id of an event.
pub(crate) fn id_of(event: &Value) -> ItemId {
    let event = LineEvent::parse(&"Uf00dbot".into(), &event.to_string()).unwrap();
    event.id(&Tenant::default())
}
