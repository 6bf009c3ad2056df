//! The clients of a run. Each makes calls that its own random sequence chooses, and records every answer.

pub(crate) mod broker;
pub(crate) mod commands;
pub(crate) mod events;
pub(crate) mod line;
pub(crate) mod locks;
pub(crate) mod outbox;
pub(crate) mod proxy;
pub(crate) mod records;
pub(crate) mod transactions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::api_client::ApiClient;
use crate::history::Observation;
use crate::installation::StoreKind;
use crate::random::SeededRandom;
use crate::recorder::HistoryRecorder;

/// The longest lease of a lock, a command or a proxied request. Pauses are longer.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// How long nothing may move before what is missing is taken for lost, where a failover may lose it.
pub(crate) const LOST_TIMEOUT: Duration = Duration::from_secs(8);

/// A family of clients and the checks of what they saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WorkloadKind {
    /// Locks with fences against a resource that refuses smaller fences.
    Locks,
    /// Records under compare-and-put.
    Records,
    /// Commands with attempts and stored answers.
    Commands,
    /// Events with retries, and followers that reconnect anywhere.
    Events,
    /// Keyed requests through the proxy.
    Proxy,
    /// Outbox, relay, webhook and inbox.
    Outbox,
    /// Claim, effect and answer in one transaction of the client's own.
    Transactions,
    /// Webhooks of LINE through two gateways.
    Line,
    /// Outbox, relay, NATS JetStream and inbox.
    Broker,
}

impl WorkloadKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Locks,
        Self::Records,
        Self::Commands,
        Self::Events,
        Self::Proxy,
        Self::Outbox,
        Self::Transactions,
        Self::Line,
        Self::Broker,
    ];

    /// Whether it can run there: Redis has no transactions of a client.
    pub fn runs_on(self, store: StoreKind) -> bool {
        self != Self::Transactions || !store.name().contains("redis")
    }

    /// Its name on the command line and in violations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Locks => "locks",
            Self::Records => "records",
            Self::Commands => "commands",
            Self::Events => "events",
            Self::Proxy => "proxy",
            Self::Outbox => "outbox",
            Self::Transactions => "transactions",
            Self::Line => "line",
            Self::Broker => "broker",
        }
    }
}

/// What every client has.
pub(crate) struct TortureClient {
    pub(crate) number: u32,
    pub(crate) api: ApiClient,
    pub(crate) random: SeededRandom,
    pub(crate) recorder: Arc<HistoryRecorder>,
    pub(crate) over: Arc<AtomicBool>,
    /// How many times the usual number of clients there are: so many times more keys keep the same contention.
    pub(crate) factor: u32,
    calls: u64,
}

impl TortureClient {
    pub(crate) fn new(
        number: u32,
        addresses: &[String],
        seed: u64,
        recorder: Arc<HistoryRecorder>,
        over: Arc<AtomicBool>,
        factor: u32,
    ) -> Self {
        let random = SeededRandom::new(seed, 1000 + u64::from(number));
        let api = ApiClient::new(addresses, number);
        Self { number, api, random, recorder, over, factor, calls: 0 }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(crate) fn now(&self) -> u64 {
        self.recorder.now()
    }

    pub(crate) fn record(&self, from: u64, what: Observation) {
        self.recorder.record(self.number, from, what);
    }

    /// A number that no other call of the run has.
    pub(crate) fn unique(&mut self) -> u64 {
        self.calls += 1;
        (u64::from(self.number) << 32) | self.calls
    }

    /// One of a few keys, which change every few seconds, so that each has a bounded history.
    pub(crate) fn key(&mut self, name: &str, keys: u64, seconds: u64) -> String {
        let generation = self.now() / 1_000_000 / seconds;
        format!("{name}-{generation}-{}", self.random.below(keys * u64::from(self.factor)))
    }

    /// Waits up to so many milliseconds.
    pub(crate) async fn pause(&mut self, most: u64) {
        tokio::time::sleep(self.random.millis(0, most)).await;
    }

    /// Waits a little before the next call to another node, when there is no connection.
    pub(crate) async fn wait_for_node(&mut self) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    /// Before the next call: after a failure wait a little, as clients do; sometimes change to another node.
    pub(crate) async fn prepare_call(&mut self) {
        if self.api.take_failure() {
            let time = self.random.millis(20, 150);
            tokio::time::sleep(time).await;
        }
        if self.random.one_in(8) {
            self.api.move_on();
        }
    }
}
