//! Shared by the tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{
    FailoverServer, FailoverStore, LossyConnection, LossyStore, StoreUnderTest,
};
use hapax_core::log::{
    Appended, Attached, Cursor, LogEvent, LogRetention, PARTITIONS, PageRequest, TailPosition,
};
use hapax_core::{
    ClaimRequest, Claimed, Claims, Fingerprint, Key, Log, Store, StoreError, StoreResult, Tenant,
    Ticket,
};
use hapax_redis::{RedisConfig, RedisStore, VerbatimKeys};
use hapax_testkit::{Redis, RedisCluster, RedisSentinel, TcpProxy, wait_for};
use tokio::task::JoinHandle;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// A timeout that does not fail on a busy machine.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// With the verbatim keys of the original bots.
pub(crate) fn config(url: &str) -> RedisConfig {
    let verbatim = VerbatimKeys::default();
    let verbatim = verbatim.locks(["processing:*"]).records(["user:*:last_transaction"]);
    RedisConfig::new(url).unwrap().verbatim(verbatim)
}

/// A store with a long timeout, so that a busy machine does not fail the test.
pub(crate) fn patient(url: &str) -> RedisStore {
    RedisStore::open(config(url).timeout(WAIT_TIMEOUT)).unwrap()
}

/// A server, and a store on it.
pub(crate) fn server() -> (Redis, RedisStore) {
    server_with(&[])
}

pub(crate) fn server_with(arguments: &[&str]) -> (Redis, RedisStore) {
    let redis = Redis::with(arguments);
    let store = patient(&redis.url());
    (redis, store)
}

/// A Cluster, and a store on it.
pub(crate) fn cluster() -> (RedisCluster, RedisStore) {
    let cluster = RedisCluster::start();
    let store = patient(&cluster.url());
    (cluster, store)
}

/// Waits until a replica has this master's last write.
pub(crate) fn wait_until_replicated(master: &Redis, barrier_key: &str) {
    let set = format!("SET {barrier_key} 1");
    let replicated = || {
        let confirmed = master.cli_lines(&[&set, "WAIT 1 1000"]);
        (confirmed.lines().last() == Some("1")).then_some(())
    };
    wait_for("the replica follows", WAIT_TIMEOUT, replicated);
}

/// Sentinels that start no failover by themselves, because a busy machine must not cause one.
pub(crate) fn calm_sentinels() -> RedisSentinel {
    let servers = RedisSentinel::start();
    tolerate(&servers, LONG);
    servers
}

/// Sets how long a master may be silent before the sentinels replace it.
pub(crate) fn tolerate(servers: &RedisSentinel, silence: Duration) {
    for port in servers.sentinel_ports() {
        let silence = silence.as_millis().to_string();
        let set = ["SENTINEL", "SET", "hapax", "down-after-milliseconds", &silence];
        assert_eq!(servers.node(port).cli(&set), "OK");
    }
}

/// The servers behind one URL, for the conformance suite.
pub(crate) struct Servers {
    pub(crate) url: String,
    /// The port of a single server without TLS, to which a proxy can be put.
    pub(crate) port: Option<u16>,
}

#[async_trait]
impl StoreUnderTest for Servers {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(patient(&self.url))
    }

    async fn lossy(&self) -> Option<LossyStore> {
        let wire = Arc::new(TcpProxy::to(self.port?));
        let store = Arc::new(patient(&through(&wire)));
        Some(LossyStore { store, connection: Arc::new(ProxiedWire(wire)) })
    }

    /// On a server of its own. Its topology does not matter: what turns the epoch is the replication id.
    async fn failover(&self) -> Option<FailoverStore> {
        self.port?;
        let (server, store) = server_with(&["--appendonly", "no"]);
        let server = Arc::new(SnapshotServer { server, store: store.clone() });
        Some(FailoverStore { store: Arc::new(store), server })
    }
}

/// A server that has nothing but its last snapshot when it starts again.
struct SnapshotServer {
    server: Redis,
    store: RedisStore,
}

#[async_trait]
impl FailoverServer for SnapshotServer {
    async fn keep(&self) {
        assert_eq!(self.server.cli(&["SAVE"]), "OK");
    }

    async fn lose(&self) {
        self.server.kill();
        self.server.restart();
        until_it_works(|| self.store.ping()).await;
    }
}

struct ProxiedWire(Arc<TcpProxy>);

impl LossyConnection for ProxiedWire {
    fn hold_answers(&self) {
        self.0.stall_answers();
    }

    fn lose_answers(&self) {
        self.0.cut();
        self.0.resume();
    }
}

/// The URL of a server behind this proxy.
pub(crate) fn through(wire: &TcpProxy) -> String {
    format!("redis://127.0.0.1:{}", wire.port())
}

pub(crate) async fn check(url: String, port: Option<u16>) {
    hapax_conformance::check(|| async {
        Arc::new(Servers { url: url.clone(), port }) as Arc<dyn StoreUnderTest>
    })
    .await;
}

pub(crate) fn lock(name: &str) -> Key {
    Key::lock(&Tenant::default(), name).unwrap()
}

pub(crate) fn record(name: &str) -> Key {
    Key::record(&Tenant::default(), name).unwrap()
}

pub(crate) async fn granted(store: &RedisStore, key: &Key, ask: &ClaimRequest) -> Ticket {
    match store.claim(key, ask).await.unwrap() {
        Claimed::Granted { ticket, .. } => ticket,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// Repeats a call until it succeeds, for example while a store is reconnecting.
pub(crate) async fn until_it_works<T, F>(mut call: impl FnMut() -> F) -> T
where
    F: Future<Output = StoreResult<T>>,
{
    // Long enough for a failover.
    let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT * 3;
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) if tokio::time::Instant::now() > deadline => panic!("still: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

pub(crate) fn job(name: &str) -> Key {
    Key::job(&Tenant::default(), "scan", name).unwrap()
}

pub(crate) fn event(job: &Key, seq: u64, payload: &str) -> LogEvent {
    LogEvent {
        job: job.clone(),
        stage: "vision".into(),
        seq,
        fingerprint: Fingerprint::of(&[payload.as_bytes()]),
        payload: payload.to_owned().into(),
        closes: false,
    }
}

/// Events with these seqs, each with its seq as the payload.
pub(crate) fn events(job: &Key, seqs: impl IntoIterator<Item = u64>) -> Vec<LogEvent> {
    seqs.into_iter().map(|seq| event(job, seq, &seq.to_string())).collect()
}

/// Appends events that must be new, and returns their cursors.
pub(crate) async fn published(store: &RedisStore, events: &[LogEvent]) -> Vec<Cursor> {
    let at = |answer| match answer {
        Appended::Published(at) => at,
        other => panic!("expected it to be new, got {other:?}"),
    };
    store.append(events, &LogRetention::default()).await.unwrap().into_iter().map(at).collect()
}

/// Appends one event after the other to a job until `stop`, and repeats each until it is acknowledged.
pub(crate) fn spawn_appends(
    store: &RedisStore,
    job: &Key,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<Vec<Cursor>> {
    let (store, job, stop) = (store.clone(), job.clone(), stop.clone());
    tokio::spawn(async move {
        let (mut acknowledged, keep) = (Vec::new(), LogRetention::default());
        for seq in 0.. {
            if stop.load(Ordering::SeqCst) {
                break;
            }
            let call = events(&job, [seq]);
            match until_it_works(|| store.append(&call, &keep)).await[0] {
                Appended::Published(at) | Appended::Duplicate(at) => acknowledged.push(at),
                other => panic!("{other:?}"),
            }
        }
        acknowledged
    })
}

/// The head, the state and all entries of a job.
pub(crate) async fn read_job(store: &RedisStore, job: &Key) -> StoreResult<Option<Attached>> {
    store.attach(job, &PageRequest::new(0, 100_000).with_state()).await
}

pub(crate) async fn attached(store: &RedisStore, job: &Key) -> Attached {
    read_job(store, job).await.unwrap().expect("the job has a log")
}

/// Succeeds once a job has more entries than that.
pub(crate) async fn grown(store: &RedisStore, job: &Key, beyond: u64) -> StoreResult<()> {
    let last = store
        .attach(job, &PageRequest::new(0, 0).with_state())
        .await?
        .map_or(0, |attached| attached.head.last);
    let not_yet = || StoreError::Internal { reason: "not yet".into(), source: None };
    (last > beyond).then_some(()).ok_or_else(not_yet)
}

/// The name of a key of a job's partition.
pub(crate) fn partition_key(job: &Key, what: &str) -> String {
    format!("hapax:{{p{}}}:{what}", job.partition(PARTITIONS))
}

pub(crate) fn job_key(job: &Key) -> String {
    partition_key(job, &job.canonical())
}

/// Reads the tail of a job's partition to its end: the job's offsets, the next position, whether entries were lost.
pub(crate) async fn drained(
    store: &RedisStore,
    job: &Key,
    from: &TailPosition,
) -> (Vec<u64>, TailPosition, bool) {
    let (mut offsets, mut next, mut lost) = (Vec::new(), from.clone(), false);
    loop {
        let from = [(job.partition(PARTITIONS), next)];
        let tail = store.tail(&from, 3).await.unwrap().remove(0);
        (next, lost) = (tail.next, lost | tail.lost);
        if tail.changes.is_empty() {
            return (offsets, next, lost);
        }
        let mine = tail.changes.into_iter().filter(|change| change.job == *job);
        offsets.extend(mine.map(|change| change.offset));
    }
}

/// All stored values, key by key.
pub(crate) fn dump(redis: &Redis) -> Vec<String> {
    let keys = redis.cli(&["KEYS", "*"]);
    let mut keys: Vec<_> = keys.lines().map(str::to_owned).collect();
    keys.sort();
    keys.into_iter().map(|key| redis.cli(&["DUMP", &key]) + &key).collect()
}
