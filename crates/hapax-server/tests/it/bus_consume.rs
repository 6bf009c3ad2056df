//! `bus.consume` on every store: members share the partitions, and a dead member is replaced.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::bus::consume::{
    Consumer, ConsumerGroupConfig, EventDelivery, EventOutcome, HandlerError,
};
use hapax::bus::{Bus, NewEvent};
use hapax::{Store, StoreConfig};
use hapax_testkit::{Postgres, Redis, RedisCluster};
use tokio::time::Instant;

const JOBS: usize = 50;
const PATIENCE: Duration = Duration::from_secs(120);

/// By job: which member handled which offset, in order.
type Deliveries = BTreeMap<String, Vec<(&'static str, u64)>>;

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Deliveries>>);

impl Seen {
    /// Whether each job's event at this offset was handled by any member.
    fn all_have(&self, offset: u64) -> bool {
        let seen = self.0.lock().unwrap();
        seen.values().filter(|job| job.iter().any(|(_, at)| *at == offset)).count() == JOBS
    }

    fn knows(&self, member: &str) -> bool {
        self.0.lock().unwrap().values().flatten().any(|(by, _)| *by == member)
    }
}

fn member(bus: &Bus, seen: &Seen, name: &'static str) -> Consumer {
    let seen = seen.clone();
    let handler = move |delivery: EventDelivery| {
        let mut seen = seen.0.lock().unwrap();
        let job = seen.entry(delivery.job.name().to_owned()).or_default();
        job.push((name, delivery.entry.at.offset));
        async { Ok::<_, HandlerError>(EventOutcome::Done) }
    };
    let consume = ConsumerGroupConfig::default()
        .lease(Duration::from_secs(5))
        .poll_interval(Duration::from_millis(50));
    bus.consume_with("billing", handler, consume).unwrap()
}

async fn publish(bus: &Bus, seq: u64) {
    let event = |job| NewEvent::new("orders", format!("job-{job}"), "paid", seq);
    bus.publish_all(&(0..JOBS).map(event).collect::<Vec<_>>()).await.unwrap();
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < limit, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn members_share_and_are_replaced(url: &str) {
    let patient = StoreConfig::default().timeout(Duration::from_secs(20));
    let store: Arc<dyn Store> = hapax::open(url, &patient).unwrap();
    let bus = Bus::new(store);
    let seen = Seen::default();
    let first = member(&bus, &seen, "first");
    publish(&bus, 1).await;
    until("the first member handles all", || seen.all_have(1)).await;
    let second = member(&bus, &seen, "second");
    let mut last = 1;
    let limit = Instant::now() + PATIENCE;
    while !seen.knows("second") {
        assert!(Instant::now() < limit, "the second member never got a share");
        last += 1;
        publish(&bus, last).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(first);
    last += 1;
    publish(&bus, last).await;
    until("the second member handles all", || seen.all_have(last)).await;
    second.stop().await;
    for offset in 1..=last {
        assert!(seen.all_have(offset), "at least once: {offset}");
    }
    for (job, handled) in &*seen.0.lock().unwrap() {
        let mut next = 1;
        for (_, offset) in handled {
            // An event may be handled again: a member that stalls longer than its lease is replaced
            // before it has saved its position. An event must not be skipped.
            assert!(*offset <= next, "in order: {job} {handled:?}");
            next = next.max(offset + 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_group_shares_jobs_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("hapax.db").display());
    members_share_and_are_replaced(&url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_group_shares_jobs_on_redis() {
    let redis = Redis::start();
    members_share_and_are_replaced(&redis.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_group_shares_jobs_on_redis_cluster() {
    let cluster = RedisCluster::start();
    members_share_and_are_replaced(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_group_shares_jobs_on_postgres() {
    let postgres = Postgres::start();
    members_share_and_are_replaced(&postgres.url()).await;
}
