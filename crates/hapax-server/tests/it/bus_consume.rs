//! `bus.consume` on every store: members share the partitions, and a dead member is replaced.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax::StoreConfig;
use hapax::bus::consume::{
    Consumer, ConsumerGroupConfig, EventDelivery, EventOutcome, HandlerError,
};
use hapax::bus::{Bus, NewEvent};

use crate::support::store::{TestStore, tests_on_stores};
use crate::support::{eventually, until_true};

const JOBS: usize = 50;

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

async fn members_share_and_are_replaced(store: TestStore) {
    let patient = StoreConfig::default().timeout(Duration::from_secs(20));
    let bus = Bus::new(hapax::open(&store.url(), &patient).unwrap());
    let seen = Seen::default();
    let first = member(&bus, &seen, "first");
    publish(&bus, 1).await;
    eventually("the first member handles all", || seen.all_have(1));
    let second = member(&bus, &seen, "second");
    let mut last = 1;
    until_true("the second member gets a share", async || {
        last += 1;
        publish(&bus, last).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        seen.knows("second")
    })
    .await;
    drop(first);
    last += 1;
    publish(&bus, last).await;
    eventually("the second member handles all", || seen.all_have(last));
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

tests_on_stores! {
    members_share_and_are_replaced;
    consumer_group_shares_jobs_on_sqlite on sqlite,
    consumer_group_shares_jobs_on_redis on redis,
    consumer_group_shares_jobs_on_redis_cluster on redis_cluster,
    consumer_group_shares_jobs_on_postgres on postgres,
}
