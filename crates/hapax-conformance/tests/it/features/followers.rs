//! Followers of jobs: what they are told, and what they cost the store.

use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::{CountingStore, FaultyStore};
use hapax_core::bus::{Bus, BusConfig, FollowFrom, Follower, JobFrame, NewEvent, NextFrames};
use hapax_core::log::{Appended, LogRetention};
use hapax_core::memory::MemoryStore;
use hapax_core::{ManualClock, Store};
use serde_json::json;
use tokio::time::timeout;

/// Longer than the interval in which a job is read without a hint; virtual time.
const LONG: Duration = Duration::from_secs(600);

/// A bus that reads the tail so rarely that its calls do not count.
fn bus_on(store: Arc<dyn Store>) -> Bus {
    Bus::with_config(store, BusConfig::default().poll_interval(Duration::from_secs(3600)))
}

fn event(seq: u64) -> NewEvent {
    NewEvent::new("scan", "job-1", "vision", seq)
}

async fn follow(bus: &Bus, from: FollowFrom) -> Follower {
    bus.follow("scan", "job-1", from).await.unwrap().expect("the job is open")
}

async fn next(follower: &mut Follower) -> Vec<JobFrame> {
    match timeout(LONG, follower.next()).await.expect("the follower is told something") {
        NextFrames::Frames(frames) => frames,
        other => panic!("{other:?}"),
    }
}

fn json_of(frame: &JobFrame) -> &str {
    std::str::from_utf8(frame.encoded().json()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn fault_04_follower_is_told_when_its_job_is_forgotten() {
    let clock = Arc::new(ManualClock::default());
    let keep = LogRetention { retention: Duration::from_secs(60), ..LogRetention::default() };
    let config = BusConfig::default().retention(keep);
    let bus = Bus::with_config(Arc::new(MemoryStore::new(clock.clone())), config);
    let _ = bus.publish(&event(1)).await.unwrap();
    let mut follower = follow(&bus, FollowFrom::Start).await;
    assert_eq!(next(&mut follower).await.len(), 1);
    clock.advance(Duration::from_secs(61));
    let told = next(&mut follower).await;
    assert_eq!((told.len(), json_of(&told[0])), (1, r#"{"from":2,"to":null}"#));
    let _ = bus.publish(&event(1)).await.unwrap();
    let new = next(&mut follower).await;
    assert_eq!((new.len(), new[0].at().unwrap().offset), (1, 1), "no second gap");
}

#[tokio::test(start_paused = true)]
async fn fault_05_followers_at_one_place_share_a_read() {
    const EVENTS: u64 = 40;
    let store = FaultyStore::new(Arc::new(MemoryStore::default()));
    let bus = bus_on(Arc::new(store.clone()));
    let large = json!("x".repeat(200_000));
    for seq in 0..EVENTS {
        let _ = bus.publish(&event(seq).data(large.clone())).await.unwrap();
    }
    let mut followers = Vec::new();
    for _ in 0..20 {
        followers.push(follow(&bus, FollowFrom::Start).await);
    }
    let before = store.calls();
    for offset in 1..=EVENTS {
        for follower in &mut followers {
            let frames = next(follower).await;
            assert_eq!(frames.iter().map(|f| f.at().unwrap().offset).collect::<Vec<_>>(), [offset]);
        }
    }
    let calls = store.calls() - before;
    assert!(calls <= EVENTS + 5, "{calls} reads of {EVENTS} events");
}

#[tokio::test(start_paused = true)]
async fn fault_32_last_seq_takes_few_reads() {
    let store = FaultyStore::new(Arc::new(MemoryStore::default()));
    let bus = bus_on(Arc::new(store.clone()));
    let events: Vec<_> = (1..=10_000).map(event).collect();
    assert_eq!(bus.publish_all(&events).await.unwrap().len(), 10_000);
    let before = store.calls();
    let mut follower = follow(&bus, FollowFrom::Seq(5_000)).await;
    assert_eq!(next(&mut follower).await[0].at().unwrap().offset, 5_001);
    let calls = store.calls() - before;
    assert!(calls <= 12, "{calls} reads");
}

/// Lets the followers take turns until the end of the job, or until each has this many bytes; returns
/// how many they have together.
async fn read_bytes(followers: Vec<Follower>, last: u64, at_most: u64) -> u64 {
    let mut followers: Vec<_> = followers.into_iter().map(|follower| (follower, 0)).collect();
    let mut all = 0;
    while !followers.is_empty() {
        for (follower, bytes) in &mut followers {
            let frames = next(follower).await;
            *bytes += frames.iter().map(|frame| frame.encoded().json().len() as u64).sum::<u64>();
        }
        followers.retain(|(follower, bytes)| {
            let goes_on = *bytes < at_most && follower.cursor().is_none_or(|at| at.offset < last);
            all += if goes_on { 0 } else { *bytes };
            goes_on
        });
    }
    all
}

#[tokio::test(start_paused = true)]
async fn followers_read_what_they_deliver_wherever_they_return() {
    // Jobs of 4 MB, of large events and of small ones.
    for (events, size) in [(1_000, 4_000), (12_000, 200)] {
        let store = CountingStore::new(Arc::new(MemoryStore::default()));
        let bus = bus_on(Arc::new(store.clone()));
        let data = json!("x".repeat(size));
        let batch: Vec<_> = (1..=events).map(|seq| event(seq).data(data.clone())).collect();
        let appended = bus.publish_all(&batch).await.unwrap();
        let at = |offset: u64| match appended[offset as usize - 1] {
            Appended::Published(cursor) => FollowFrom::Cursor(cursor),
            other => panic!("{other:?}"),
        };
        let check = |what: &str, before: u64, delivered: u64| {
            let read = store.attach_bytes() - before;
            let ratio = read as f64 / delivered as f64;
            assert!(ratio <= 1.3, "{what}, {events} events: {read} bytes read for {delivered}");
        };
        // One at a time: the job is forgotten and found again each time.
        for behind in [1, 10, 63, 100, 300, 600, 999] {
            let before = store.attach_bytes();
            let follower = follow(&bus, at(events - behind)).await;
            let delivered = read_bytes(vec![follower], events, u64::MAX).await;
            check(&format!("{behind} behind"), before, delivered);
        }
        let before = store.attach_bytes();
        let follower = follow(&bus, FollowFrom::Start).await;
        let delivered = read_bytes(vec![follower], events, u64::MAX).await;
        check("from the start", before, delivered);
        // Some that leave in the middle.
        let (before, mut delivered) = (store.attach_bytes(), 0);
        for place in 1..10 {
            let follower = follow(&bus, at(place * events / 20)).await;
            delivered += read_bytes(vec![follower], events, 300_000).await;
        }
        check("left early", before, delivered);
        // Many at once, with a ring that holds the end of the job.
        let _ring = follow(&bus, at(events - 50)).await;
        let before = store.attach_bytes();
        let mut followers = Vec::new();
        for place in 1..40 {
            followers.push(follow(&bus, at(place * events / 40)).await);
        }
        let delivered = read_bytes(followers, events, u64::MAX).await;
        check("many at once", before, delivered);
    }
}
