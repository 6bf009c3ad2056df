//! Following a job through the library, as the streams of the server do.

use std::sync::Arc;
use std::time::Duration;

use hapax::bus::{
    Bus, BusConfig, ClosingEvent, FollowFrom, Follower, FrameKind, JobFrame, NewEvent, NextFrames,
};
use hapax::log::{Appended, Cursor, LogRetention};
use hapax::memory::MemoryStore;
use hapax::{ManualClock, Store, StoreConfig};
use hapax_conformance::{Fault, FaultyStore};
use hapax_testkit::scale;
use serde_json::json;

use crate::soak_bus::random::Random;
use crate::support::store::TestStore;
use crate::support::{WAIT_TIMEOUT, soon, until_true};

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

/// On a store with faults, polled often.
fn faulty() -> (Bus, FaultyStore) {
    let store = FaultyStore::new(memory());
    let settings = BusConfig::default().poll_interval(Duration::from_millis(20));
    (Bus::with_config(Arc::new(store.clone()), settings), store)
}

fn event(seq: u64) -> NewEvent {
    NewEvent::new("scan", "job-1", "vision", seq).data(json!({"n": seq}))
}

async fn publish(bus: &Bus, seqs: std::ops::Range<u64>) {
    for seq in seqs {
        assert!(matches!(bus.publish(&event(seq)).await.unwrap(), Appended::Published(_)));
    }
}

async fn follow(bus: &Bus, since: FollowFrom) -> Follower {
    bus.follow("scan", "job-1", since).await.unwrap().expect("it is not complete")
}

/// The next frames; `None` at the end.
async fn next(follower: &mut Follower) -> Option<Vec<JobFrame>> {
    match soon("something comes", follower.next()).await {
        NextFrames::Frames(frames) => Some(frames),
        NextFrames::Complete | NextFrames::Stopped => None,
    }
}

async fn take(follower: &mut Follower, count: usize) -> Vec<JobFrame> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(next(follower).await.expect("there is more"));
    }
    assert_eq!(taken.len(), count);
    taken
}

fn offsets(frames: &[JobFrame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.at().expect("an id").offset).collect()
}

#[tokio::test]
async fn hole_16_lost_hint_delays_but_loses_no_event() {
    // The usual design hears of new events by Pub/Sub alone, which is at most once: what is published while
    // the connection is down never reaches the client. Here no hint ever arrives.
    let (bus, store) = faulty();
    store.suppress_hints();
    let mut follower = follow(&bus, FollowFrom::Start).await;
    publish(&bus, 0..3).await;
    assert_eq!(offsets(&take(&mut follower, 3).await), [1, 2, 3]);
    publish(&bus, 3..4).await;
    assert_eq!(offsets(&take(&mut follower, 1).await), [4]);
}

#[tokio::test]
async fn hole_16_event_between_replay_and_live_is_seen_once() {
    // The usual design replays, and then subscribes: an event in between is lost (or, subscribed first and
    // not compared, seen twice). Here every look at the log takes long enough for that.
    let (bus, store) = faulty();
    publish(&bus, 0..1).await;
    store.plan([Fault::Stall(Duration::from_millis(100)), Fault::None, Fault::None]);
    let publishing = bus.clone();
    let publisher = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        publish(&publishing, 1..3).await;
    });
    let mut follower = follow(&bus, FollowFrom::Start).await;
    publisher.await.unwrap();
    assert_eq!(offsets(&take(&mut follower, 3).await), [1, 2, 3]);
}

#[tokio::test]
async fn hole_11_event_of_cut_off_publisher_is_published_by_retry() {
    // The usual design's router sets the marker first: cut off before the publish, the retry finds the
    // marker, takes the event for a duplicate, and nobody ever gets it.
    for (faults, again) in [
        ([Fault::LostQuestion, Fault::LostQuestion], true),
        ([Fault::LostAnswer, Fault::LostAnswer], false),
    ] {
        let (bus, store) = faulty();
        store.plan(faults);
        assert!(bus.publish(&event(10)).await.is_err());
        let retried = bus.publish(&event(10)).await.unwrap();
        let expected =
            |at: Cursor| if again { Appended::Published(at) } else { Appended::Duplicate(at) };
        let (Appended::Published(at) | Appended::Duplicate(at)) = retried else { panic!() };
        assert_eq!((retried, at.offset), (expected(at), 1));
        assert_eq!(offsets(&take(&mut follow(&bus, FollowFrom::Start).await, 1).await), [1]);
    }
}

#[tokio::test]
async fn redis_call_with_lost_reply_is_retried() {
    let (bus, store) = faulty();
    store.plan([Fault::LostAnswer]);
    assert!(matches!(bus.publish(&event(10)).await.unwrap(), Appended::Duplicate(_)));
}

#[tokio::test]
async fn store_failure_is_reported_to_new_followers_only() {
    let (bus, store) = faulty();
    publish(&bus, 0..1).await;
    let mut follower = follow(&bus, FollowFrom::Start).await;
    take(&mut follower, 1).await;
    store.always(Some(Fault::LostQuestion));
    assert!(bus.follow("scan", "other", FollowFrom::Start).await.is_err());
    until_true("the tail grows old", async || bus.tail_age() >= Duration::from_millis(200)).await;
    store.always(None);
    publish(&bus, 1..2).await;
    assert_eq!(offsets(&take(&mut follower, 1).await), [2]);
    until_true("the tail is read again", async || bus.tail_age() <= Duration::from_millis(150))
        .await;
}

#[tokio::test]
async fn follower_far_behind_catches_up_from_the_store() {
    let (bus, _) = faulty();
    let mut early = follow(&bus, FollowFrom::Start).await;
    let events: Vec<_> = (0..900).map(event).collect();
    assert_eq!(bus.publish_all(&events).await.unwrap().len(), 900);
    let mut late = follow(&bus, FollowFrom::Start).await;
    let all: Vec<_> = (1..=900).collect();
    assert_eq!(offsets(&take(&mut early, 900).await), all);
    assert_eq!(offsets(&take(&mut late, 900).await), all);
    publish(&bus, 900..901).await;
    assert_eq!(offsets(&take(&mut late, 1).await), [901]);
}

#[tokio::test]
async fn large_events_are_taken_one_by_one() {
    let (bus, _) = faulty();
    let large = |seq| event(seq).data(json!("x".repeat(900_000)));
    for seq in 0..4 {
        let _ = bus.publish(&large(seq)).await.unwrap();
    }
    let mut follower = follow(&bus, FollowFrom::Start).await;
    for offset in 1..=4 {
        assert_eq!(offsets(&next(&mut follower).await.unwrap()), [offset]);
    }
}

#[tokio::test]
async fn recreated_log_is_reported_to_followers_of_the_old() {
    let clock = Arc::new(ManualClock::default());
    let keep = LogRetention { retention: Duration::from_secs(60), ..LogRetention::default() };
    let settings = BusConfig::default().retention(keep);
    let bus = Bus::with_config(Arc::new(MemoryStore::new(clock.clone())), settings);
    publish(&bus, 0..3).await;
    let mut follower = follow(&bus, FollowFrom::Start).await;
    let seen = take(&mut follower, 3).await;
    clock.advance(Duration::from_secs(61));
    publish(&bus, 0..1).await;
    let told = take(&mut follower, 3).await;
    let kinds: Vec<_> = told.iter().map(JobFrame::kind).collect();
    assert_eq!(
        kinds,
        [FrameKind::Gap { from: 4, to: Some(0) }, FrameKind::Snapshot, FrameKind::Entry]
    );
    let (old, new) = (seen[2].at().unwrap(), told[2].at().unwrap());
    assert!(new.epoch > old.epoch && new.offset == 1);
}

#[tokio::test]
async fn stopped_bus_ends_its_followers() {
    let (bus, _) = faulty();
    let mut follower = follow(&bus, FollowFrom::Start).await;
    let waiting = tokio::spawn(async move { follower.next().await });
    tokio::task::yield_now().await;
    bus.stop();
    assert!(matches!(soon("it ends", waiting).await.unwrap(), NextFrames::Stopped));
}

#[tokio::test]
async fn job_reader_ends_with_the_last_follower() {
    let (bus, store) = faulty();
    drop(follow(&bus, FollowFrom::Start).await);
    let mut calls = store.calls();
    // A read in flight may end first; then the poll finds no follower.
    until_true("nothing is read any more", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = store.calls();
        std::mem::replace(&mut calls, now) == now && bus.tail_age().is_zero()
    })
    .await;
}

/// Publishers with duplicates, and followers that join and leave at any moment.
async fn everybody_sees_everything_once(store: Arc<dyn Store>) {
    const PUBLISHERS: u64 = 4;
    let events = 60 * u64::from(scale());
    let config = BusConfig::default().closing_event(ClosingEvent::new("done", 51));
    let bus = Bus::with_config(store, config);
    let followers: Vec<_> = (0..40)
        .map(|i| tokio::spawn(come_and_go(bus.clone(), i, PUBLISHERS * events + 1)))
        .collect();
    let publishers = (0..PUBLISHERS).map(|p| {
        let bus = bus.clone();
        tokio::spawn(async move {
            for seq in 0..events {
                let event = NewEvent::new("scan", "job-1", format!("p{p}"), seq).data(json!(seq));
                assert!(matches!(bus.publish(&event).await.unwrap(), Appended::Published(_)));
                if seq % 3 == 0 {
                    assert!(matches!(bus.publish(&event).await.unwrap(), Appended::Duplicate(_)));
                }
            }
        })
    });
    for publisher in publishers.collect::<Vec<_>>() {
        publisher.await.unwrap();
    }
    let _ = bus.publish(&NewEvent::new("scan", "job-1", "done", 51)).await.unwrap();
    for follower in followers {
        tokio::time::timeout(5 * WAIT_TIMEOUT, follower)
            .await
            .expect("it comes to the end")
            .unwrap();
    }
}

async fn come_and_go(bus: Bus, number: u64, events: u64) {
    let mut random = Random::new(number);
    let mut seen: Option<Cursor> = None;
    loop {
        tokio::time::sleep(Duration::from_millis(random.below(30) as u64)).await;
        let since = seen.map_or(FollowFrom::Start, FollowFrom::Cursor);
        // A follow may fail at first if the store is slower than the bus waits; try again.
        let Ok(followed) = bus.follow("scan", "job-1", since).await else { continue };
        let Some(mut follower) = followed else { break };
        for _ in 0..=random.below(40) {
            let Some(frames) = next(&mut follower).await else { break };
            for frame in frames {
                let at = frame.at().expect("no gap");
                assert_eq!(at.offset, seen.map_or(0, |cursor| cursor.offset) + 1);
                let start = format!("{{\"offset\":{},", at.offset);
                assert!(frame.encoded().json().starts_with(start.as_bytes()));
                seen = Some(at);
            }
        }
    }
    assert_eq!(seen.map(|cursor| cursor.offset), Some(events), "and not before the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn follower_joining_any_time_sees_events_once_in_order() {
    everybody_sees_everything_once(memory()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn follower_joining_any_time_on_sqlite() {
    let file = TestStore::sqlite();
    let patient = StoreConfig::default().timeout(WAIT_TIMEOUT);
    everybody_sees_everything_once(hapax::open(&file.url(), &patient).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn follower_joining_any_time_without_hints() {
    let store = FaultyStore::new(memory());
    store.suppress_hints();
    everybody_sees_everything_once(Arc::new(store)).await;
}
