use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::bus::{BusConfig, NewEvent};
use crate::log::LogRetention;
use crate::memory::MemoryStore;
use crate::{Log, Put, Records, RuntimeClock, Tenant};

fn in_virtual_time() -> MemoryStore {
    MemoryStore::new(Arc::new(RuntimeClock::default()))
}

/// (offset, member that handled it) of each handled event, by job.
type Jobs = BTreeMap<String, Vec<(u64, &'static str)>>;

/// The events that all members have handled so far.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Jobs>>);

impl Seen {
    fn note(&self, delivery: &EventDelivery, by: &'static str) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let job = seen.entry(delivery.job.name().to_owned()).or_default();
        job.push((delivery.entry.at.offset, by));
    }

    fn all(&self) -> Jobs {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self) -> usize {
        self.all().values().map(Vec::len).sum()
    }

    fn by(&self) -> BTreeSet<&'static str> {
        self.all().into_values().flatten().map(|(_, by)| by).collect()
    }
}

fn quick() -> ConsumerGroupConfig {
    ConsumerGroupConfig::default()
        .lease(Duration::from_millis(600))
        .poll_interval(Duration::from_millis(5))
        .backoff(Duration::from_millis(5), Duration::from_millis(20))
}

fn member(bus: &Bus, seen: &Seen, by: &'static str) -> Consumer {
    let seen = seen.clone();
    let handler = move |delivery: EventDelivery| {
        seen.note(&delivery, by);
        async { Ok::<_, HandlerError>(EventOutcome::Done) }
    };
    bus.consume_with("group", handler, quick()).unwrap()
}

async fn publish(bus: &Bus, jobs: u64, first: u64, count: u64) {
    for seq in first..first + count {
        let job = |job| NewEvent::new("scan", format!("job-{job}"), "vision", seq);
        bus.publish_all(&(0..jobs).map(job).collect::<Vec<_>>()).await.unwrap();
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(tokio::time::Instant::now() < limit, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn consumer_handles_events_of_a_job_in_order_and_once() {
    let bus = Bus::new(Arc::new(in_virtual_time()));
    let seen = Seen::default();
    publish(&bus, 40, 0, 5).await;
    let one = member(&bus, &seen, "one");
    publish(&bus, 40, 5, 5).await;
    until("all is handled", || seen.count() >= 400).await;
    one.stop().await;
    for (job, handled) in seen.all() {
        let offsets: Vec<_> = handled.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (1..=10).collect::<Vec<_>>(), "{job}");
    }
    // Another member continues where the first one stopped.
    let two = member(&bus, &seen, "two");
    publish(&bus, 40, 10, 1).await;
    until("the rest is handled", || seen.count() >= 440).await;
    two.stop().await;
    assert_eq!(seen.count(), 440, "saved events are not delivered again");
}

#[tokio::test(start_paused = true)]
async fn consumer_members_share_and_replace_a_dead_one() {
    let bus = Bus::new(Arc::new(in_virtual_time()));
    let seen = Seen::default();
    let one = member(&bus, &seen, "one");
    publish(&bus, 60, 0, 1).await;
    until("it is handled", || seen.count() >= 60).await;
    let two = member(&bus, &seen, "two");
    let mut seq = 1;
    // A member that joins later gets some partitions.
    let limit = tokio::time::Instant::now() + Duration::from_secs(30);
    while !seen.by().contains("two") {
        assert!(tokio::time::Instant::now() < limit, "the second member never got anything");
        publish(&bus, 60, seq, 1).await;
        seq += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The first member dies without releasing its partitions; the second takes them over.
    drop(one);
    publish(&bus, 60, seq, 1).await;
    let wanted = seq + 1;
    let complete = || {
        let all = seen.all();
        all.len() == 60 && all.values().all(|job| job.iter().any(|(offset, _)| *offset == wanted))
    };
    until("the second one handles all", complete).await;
    two.stop().await;
    for (job, handled) in seen.all() {
        // Every event is handled at least once, and no member goes back behind its own progress.
        let offsets: BTreeSet<_> = handled.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (1..=wanted).collect::<BTreeSet<_>>(), "{job}");
        for by in ["one", "two"] {
            let own: Vec<_> = handled.iter().filter(|(_, member)| *member == by).collect();
            assert!(own.is_sorted(), "{job}: {own:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn consumer_handler_failure_holds_back_only_its_partition() {
    let bus = Bus::new(Arc::new(in_virtual_time()));
    let seen = Seen::default();
    let (attempts, noted) = (Arc::new(Mutex::new(Vec::new())), seen.clone());
    let tried = attempts.clone();
    let handler = move |delivery: EventDelivery| {
        let fails = delivery.job.name() == "job-0" && delivery.attempt < 4;
        if fails || delivery.job.name() == "job-0" {
            tried.lock().unwrap().push((delivery.attempt, delivery.id()));
        }
        if !fails {
            noted.note(&delivery, "one");
        }
        async move { if fails { Err("not yet") } else { Ok(EventOutcome::Done) } }
    };
    let one = bus.consume_with("group", handler, quick()).unwrap();
    publish(&bus, 30, 0, 1).await;
    until("all is handled", || seen.count() == 30).await;
    one.stop().await;
    let attempts = attempts.lock().unwrap().clone();
    let counts: Vec<_> = attempts.iter().map(|(attempt, _)| *attempt).collect();
    assert_eq!(counts, [1, 2, 3, 4]);
    assert!(attempts.iter().all(|(_, id)| *id == attempts[0].1 && id.len() == 64));
}

/// The handler saves its progress by a plain put, in place of one inside a transaction.
#[tokio::test(start_paused = true)]
async fn consumer_progress_saved_by_the_handler_is_fenced() {
    let store = Arc::new(in_virtual_time());
    let bus = Bus::new(store.clone());
    let seen = Seen::default();
    let (noted, records) = (seen.clone(), store.clone());
    let handler = move |delivery: EventDelivery| {
        let (noted, records) = (noted.clone(), records.clone());
        async move {
            let ConsumerProgress { key, value, expect } = delivery.progress.clone();
            match records.put(&key, value, &expect, None).await? {
                Put::Stored { version, .. } => {
                    noted.note(&delivery, "one");
                    Ok(EventOutcome::Saved(version))
                }
                Put::Conflict => Ok::<_, HandlerError>(EventOutcome::Superseded),
            }
        }
    };
    let one = bus.consume_with("group", handler.clone(), quick()).unwrap();
    publish(&bus, 10, 0, 10).await;
    until("half of it is handled", || seen.count() > 50).await;
    drop(one);
    let two = bus.consume_with("group", handler, quick()).unwrap();
    until("all is handled", || seen.count() >= 100).await;
    two.stop().await;
    for (job, handled) in seen.all() {
        let offsets: Vec<_> = handled.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (1..=10).collect::<Vec<_>>(), "{job}: each once");
    }
}

#[tokio::test(start_paused = true)]
async fn consumer_groups_and_tenants_are_separate() {
    let bus = Bus::new(Arc::new(in_virtual_time()));
    let other = bus.clone().tenant(Tenant::new("other").unwrap());
    let (mine, theirs) = (Seen::default(), Seen::default());
    let (one, two) = (member(&bus, &mine, "one"), member(&other, &theirs, "two"));
    publish(&bus, 5, 0, 2).await;
    publish(&other, 3, 0, 2).await;
    until("all is handled", || mine.count() >= 10 && theirs.count() >= 6).await;
    one.stop().await;
    two.stop().await;
    assert_eq!((mine.count(), theirs.count()), (10, 6));
    assert!(
        bus.consume("g".repeat(300).as_str(), |_: EventDelivery| async {
            Ok::<_, HandlerError>(EventOutcome::Done)
        })
        .is_err()
    );
}

/// Counts the losses that a group is told of.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<(u16, usize)>>>, Seen);

#[async_trait::async_trait]
impl EventHandler for Losses {
    async fn handle(&self, delivery: EventDelivery) -> Result<EventOutcome, HandlerError> {
        self.1.note(&delivery, "one");
        Ok(EventOutcome::Done)
    }

    async fn lost(&self, partition: u16) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((partition, self.1.count()));
    }
}

/// The group had read everything before the lost events, and none of those.
#[tokio::test(start_paused = true)]
async fn fault_13_consumer_is_told_of_events_that_a_failover_lost() {
    let store = in_virtual_time();
    let bus = Bus::new(Arc::new(store.clone()));
    let losses = Losses::default();
    publish(&bus, 1, 0, 2).await;
    let one = bus.consume_with("group", losses.clone(), quick()).unwrap();
    until("all is handled", || losses.1.count() >= 2).await;
    one.stop().await;
    let replica = store.replica();
    publish(&bus, 1, 2, 3).await;
    store.fail_over_to(replica);
    publish(&bus, 1, 10, 2).await;
    let two = bus.consume_with("group", losses.clone(), quick()).unwrap();
    until("the rest is handled", || losses.1.count() >= 4).await;
    two.stop().await;
    let job = Key::job(&Tenant::default(), "scan", "job-0").unwrap();
    let told = losses.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(told, [(job.partition(store.partitions()), 2)], "once, before the third event");
}

/// The first job expires while no member reads; the second one shows that the group goes on.
#[tokio::test(start_paused = true)]
async fn consumer_is_told_of_events_that_expired_unread() {
    let store = in_virtual_time();
    let retention = LogRetention { retention: Duration::from_secs(60), ..LogRetention::default() };
    let bus = Bus::with_config(Arc::new(store.clone()), BusConfig::default().retention(retention));
    let losses = Losses::default();
    publish(&bus, 1, 0, 1).await;
    let one = bus.consume_with("group", losses.clone(), quick()).unwrap();
    until("the first event is handled", || losses.1.count() == 1).await;
    one.stop().await;
    publish(&bus, 1, 1, 3).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    let two = bus.consume_with("group", losses.clone(), quick()).unwrap();
    let told = || losses.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    until("the loss is told", || !told().is_empty()).await;
    publish(&bus, 1, 9, 1).await;
    until("the group goes on", || losses.1.count() == 2).await;
    two.stop().await;
    let job = Key::job(&Tenant::default(), "scan", "job-0").unwrap();
    assert_eq!(told()[0], (job.partition(store.partitions()), 1));
}
