use std::sync::Arc;
use std::time::Duration;

use tokio::time::{advance, sleep};

use super::*;
use crate::claims::Claimed;
use crate::log::{Log, PageRequest};
use crate::memory::MemoryStore;
use crate::worker::TargetHealth;
use crate::{ClaimRequest, Claims, Clock, Key, ManualClock, Operation, RuntimeClock, Tenant};

fn command(name: &str) -> Key {
    Key::command(&Tenant::default(), Operation("pay"), name).unwrap()
}

fn of_caller(caller: &str, name: &str) -> Key {
    let tenant = Tenant::default().scoped(caller).unwrap();
    Key::command(&tenant, Operation("pay"), name).unwrap()
}

fn recorder() -> ActivityRecorder {
    ActivityRecorder::new(Arc::new(ManualClock::default()), true)
}

fn claim(recorder: &ActivityRecorder, key: &Key, answer: ClaimActivity) {
    let took = Some(Duration::from_millis(1));
    recorder.record(Activity::Claim { key, answer, took });
}

/// What was recorded for the only tenant.
fn drained(recorder: &ActivityRecorder) -> Option<ActivityEntry> {
    let mut drained = recorder.drain();
    assert!(drained.len() <= 1);
    drained.pop_first().map(|(_, activity)| activity.into_entry())
}

#[test]
fn recorder_counts_claims_by_their_answer() {
    let recorder = recorder();
    let key = of_caller("c0ffee", "1");
    for answer in [
        ClaimActivity::FirstRun,
        ClaimActivity::Replayed,
        ClaimActivity::Replayed,
        ClaimActivity::Waited,
        ClaimActivity::InProgress,
        ClaimActivity::Reused,
        ClaimActivity::Failed,
    ] {
        claim(&recorder, &key, answer);
    }
    recorder.record(Activity::Settled(&key));
    let entry = drained(&recorder).unwrap();
    let counts = ActivityCounts {
        requests: 7,
        first_runs: 1,
        replays: 2,
        waits: 1,
        refusals: 2,
        errors: 1,
        reused: 1,
        in_progress: 1,
    };
    assert_eq!(entry.counts, counts);
    assert_eq!(entry.latency.count(), 7);
    let kinds: Vec<_> = entry.suppressed.iter().map(|sample| sample.kind).collect();
    use SuppressionKind::{Refused, Replayed, Waited};
    assert_eq!(kinds, [Replayed, Replayed, Waited, Refused]);
    assert!(entry.suppressed.iter().all(|sample| sample.key_hash == key_hash(&key)));
    let [conflict] = entry.conflicts.as_slice() else { panic!("{:?}", entry.conflicts) };
    assert_eq!((conflict.caller.as_deref(), &*conflict.operation), (Some("c0ffee"), "pay"));
    assert_eq!((conflict.reused, conflict.in_progress), (1, 1));
    let of_key =
        KeyCounts { claimed: 1, replayed: 2, waited: 1, refused: 2, settled: 1, renewed: 0 };
    assert_eq!(entry.keys[&key_hash(&key)], of_key);
    assert_eq!(drained(&recorder), None, "drained before");
}

#[test]
fn recorder_lists_stop_growing_at_their_bounds() {
    let recorder = recorder();
    for i in 0..300 {
        claim(&recorder, &of_caller(&format!("caller-{i}"), "k"), ClaimActivity::InProgress);
    }
    let entry = drained(&recorder).unwrap();
    assert_eq!(entry.counts.in_progress, 300);
    assert_eq!(entry.suppressed.len(), MAX_SAMPLES);
    assert_eq!(entry.conflicts.len(), MAX_CONFLICTS);
    assert_eq!(entry.keys.len(), MAX_KEYS);
    for i in 0..2000 {
        let tenant = Tenant::new(&format!("tenant-{i}")).unwrap();
        recorder.record(Activity::Line { tenant: &tenant, what: "done" });
    }
    assert_eq!(recorder.drain().len(), 1000);
}

#[test]
fn recorder_of_an_edge_with_requests_counts_no_claims_as_such() {
    let recorder = ActivityRecorder::new(Arc::new(ManualClock::default()), false);
    claim(&recorder, &command("1"), ClaimActivity::FirstRun);
    let tenant = Tenant::default();
    for status in [200, 409, 429, 503, 500] {
        let result = RequestActivity::of_status(status);
        recorder.record(Activity::Request { tenant: &tenant, result, took: Duration::ZERO });
    }
    let counts = drained(&recorder).unwrap().counts;
    assert_eq!((counts.requests, counts.first_runs), (5, 1));
    assert_eq!((counts.refusals, counts.errors), (2, 1));
}

#[test]
fn recorder_counts_what_was_sent_to_a_sink_as_requests() {
    use super::SendActivity::{Failed, Recorded, Refused, Taken};
    let (recorder, tenant) = (recorder(), Tenant::default());
    for result in [Taken, Taken, Recorded, Refused, Failed] {
        let took = Duration::from_millis(3);
        recorder.record(Activity::Sent { tenant: &tenant, result, took });
    }
    let entry = drained(&recorder).unwrap();
    let expected =
        ActivityCounts { requests: 5, first_runs: 2, refusals: 1, errors: 1, ..Default::default() };
    assert_eq!((entry.counts, entry.latency.count()), (expected, 5));
}

#[test]
fn recorder_counts_requests_for_streams_apart() {
    let (recorder, tenant) = (recorder(), Tenant::default());
    let opened = [
        (RequestActivity::Answered, Some(Duration::from_millis(7))),
        (RequestActivity::Refused, None),
        (RequestActivity::Failed, Some(Duration::from_millis(9))),
    ];
    for (result, took) in opened {
        recorder.record(Activity::StreamRequest { tenant: &tenant, result, took });
    }
    let entry = drained(&recorder).unwrap();
    assert_eq!((entry.counts, entry.latency.count()), (ActivityCounts::default(), 0));
    let text = serde_json::to_string(&entry).unwrap();
    assert_eq!(serde_json::from_str::<ActivityEntry>(&text).unwrap(), entry);
    let [minute] = &by_minute(&[entry.clone(), entry])[..] else { panic!() };
    let EdgeActivity { counts, latency } = &minute.edges["sse"];
    assert_eq!((counts.requests, counts.refusals, counts.errors), (6, 2, 2));
    assert_eq!(latency.count(), 4);
    assert!(latency.percentile(50.0).unwrap() >= Duration::from_millis(7));
}

#[test]
fn recorder_renewals_alone_are_no_activity() {
    let recorder = recorder();
    recorder.record(Activity::Renewed(&command("1")));
    assert_eq!(drained(&recorder), None);
    claim(&recorder, &command("2"), ClaimActivity::FirstRun);
    let entry = drained(&recorder).unwrap();
    assert_eq!(entry.keys[&key_hash(&command("1"))].renewed, 1);
}

#[test]
fn recorder_adds_up_what_threads_counted() {
    let recorder = recorder();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                (0..100).for_each(|_| claim(&recorder, &command("1"), ClaimActivity::Replayed));
            });
        }
    });
    let entry = drained(&recorder).unwrap();
    assert_eq!((entry.counts.replays, entry.latency.count()), (1600, 1600));
    assert_eq!(entry.keys[&key_hash(&command("1"))].replayed, 1600);
    assert_eq!(entry.suppressed.len(), MAX_SAMPLES);
}

/// A store and a reporter on the clock of the runtime.
struct Reporting {
    store: Arc<MemoryStore>,
    clock: Arc<RuntimeClock>,
    recorder: Arc<ActivityRecorder>,
    reporter: ActivityReporter,
}

impl Reporting {
    fn start() -> Self {
        let clock = Arc::new(RuntimeClock::default());
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let report = ActivityReport::new("test").node("node-1").edge("api").clock(clock.clone());
        let recorder = report.recorder();
        let reporter = report.start_with(store.clone(), recorder.clone());
        Self { store, clock, recorder, reporter }
    }

    fn reader(&self) -> ActivityReader<'_> {
        ActivityReader::new(&*self.store).clock(&*self.clock)
    }

    async fn live(&self) -> Vec<ActivityEntry> {
        self.reader().live(&Tenant::default(), None, 100).await.unwrap().entries
    }

    async fn minutes(&self) -> Vec<ActivityEntry> {
        self.reader().minutes(&Tenant::default(), 0).await.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn reporter_writes_nothing_but_heartbeats_while_idle() {
    let reporting = Reporting::start();
    sleep(Duration::from_secs(600)).await;
    let end = PageRequest::new(0, 100);
    for job in
        keys::live_jobs(&Tenant::default()).iter().chain(&keys::minute_jobs(&Tenant::default()))
    {
        assert_eq!(reporting.store.attach(job, &end).await.unwrap(), None);
    }
    let nodes = keys::NODES.job_at("", reporting.clock.now());
    let beats = reporting.store.attach(&nodes, &end).await.unwrap().unwrap().entries.len();
    assert!((20..=21).contains(&beats), "one every 30 s: {beats}");
    let [node] = &reporting.reader().nodes().await.unwrap()[..] else { panic!() };
    assert_eq!((&*node.node, &*node.edge, node.stopped), ("node-1", "api", false));
    assert_eq!((node.pid, node.store_latency_ms), (std::process::id(), Some(0)));
}

#[tokio::test(start_paused = true)]
async fn reporter_writes_entries_of_seconds_and_of_minutes() {
    let reporting = Reporting::start();
    for _ in 0..45 {
        claim(&reporting.recorder, &command("1"), ClaimActivity::FirstRun);
        sleep(Duration::from_secs(2)).await;
    }
    sleep(Duration::from_secs(60)).await;
    let live = reporting.live().await;
    assert_eq!(live.iter().map(|entry| entry.counts.first_runs).sum::<u64>(), 45);
    assert!((44..=46).contains(&live.len()), "{}", live.len());
    assert!(live.iter().all(|entry| (1999..=2001).contains(&entry.ms)));
    assert!(live.windows(2).all(|pair| pair[0].at > pair[1].at), "newest first");
    let minutes = reporting.minutes().await;
    assert_eq!(minutes.iter().map(|entry| entry.counts.first_runs).sum::<u64>(), 45);
    assert!(minutes.iter().all(|entry| entry.at % 60_000 == 0 && entry.ms == 60_000));
    assert!((2..=3).contains(&minutes.len()), "{}", minutes.len());
    let chart = by_minute(&minutes);
    assert_eq!(chart.len(), minutes.len());
    assert!(chart[0].edges["api"].latency.percentile(95.0).unwrap() >= Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn reporter_tells_how_long_after_the_first_a_duplicate_came() {
    let reporting = Reporting::start();
    let key = command("1");
    let request = ClaimRequest::new(Duration::from_secs(60));
    let granted = reporting.store.claim(&key, &request).await.unwrap();
    assert!(matches!(granted, Claimed::Granted { .. }));
    sleep(Duration::from_secs(5)).await;
    claim(&reporting.recorder, &key, ClaimActivity::Replayed);
    claim(&reporting.recorder, &command("unheard-of"), ClaimActivity::Replayed);
    sleep(Duration::from_secs(2)).await;
    let live = reporting.live().await;
    let after: Vec<_> = live[0].suppressed.iter().map(|sample| sample.after_first_ms).collect();
    assert_eq!(after, [Some(5000), None]);
}

#[tokio::test(start_paused = true)]
async fn reporter_writes_the_rest_and_a_last_heartbeat_at_stop() {
    let reporting = Reporting::start();
    sleep(Duration::from_millis(10)).await;
    claim(&reporting.recorder, &command("1"), ClaimActivity::FirstRun);
    let Reporting { store, clock, reporter, .. } = reporting;
    reporter.stop().await;
    let reader = ActivityReader::new(&*store).clock(&*clock);
    assert_eq!(reader.live(&Tenant::default(), None, 9).await.unwrap().entries.len(), 1);
    assert_eq!(reader.minutes(&Tenant::default(), 0).await.unwrap().len(), 1);
    assert!(reader.nodes().await.unwrap()[0].stopped);
    advance(Duration::from_secs(3000)).await;
    assert_eq!(reader.nodes().await.unwrap().len(), 1, "stopped in the last hour");
    advance(Duration::from_secs(700)).await;
    assert_eq!(reader.nodes().await.unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn reporter_heartbeat_follows_a_change_of_state() {
    let reporting = Reporting::start();
    sleep(Duration::from_secs(5)).await;
    let status = reporting.reporter.status();
    status.set_target("nats", Some("outbox"), &TargetHealth::Down("refused".into()));
    sleep(Duration::from_millis(10)).await;
    let target = reporting.reader().nodes().await.unwrap()[0].target.clone().unwrap();
    assert_eq!((&*target.name, target.up), ("nats", false));
    status.set_target("nats", Some("outbox"), &TargetHealth::Up);
    sleep(Duration::from_millis(10)).await;
    let still = reporting.reader().nodes().await.unwrap()[0].target.clone().unwrap();
    assert!(!still.up, "at most one heartbeat a second");
    sleep(Duration::from_secs(1)).await;
    let target = reporting.reader().nodes().await.unwrap()[0].target.clone().unwrap();
    assert_eq!((target.up, target.last_error.as_deref()), (true, Some("refused")));
}

#[tokio::test(start_paused = true)]
async fn reporter_target_that_was_not_checked_has_no_error() {
    let reporting = Reporting::start();
    let status = reporting.reporter.status();
    for (health, up) in [(TargetHealth::NOT_CHECKED, false), (TargetHealth::Up, true)] {
        status.set_target("nats", Some("outbox"), &health);
        sleep(Duration::from_secs(5)).await;
        let target = reporting.reader().nodes().await.unwrap()[0].target.clone().unwrap();
        assert_eq!((target.up, target.last_error), (up, None));
    }
}

#[tokio::test(start_paused = true)]
async fn reporter_writes_nothing_before_it_may() {
    let clock = Arc::new(RuntimeClock::default());
    let store = Arc::new(MemoryStore::new(clock.clone()));
    let report = ActivityReport::new("test").clock(clock.clone()).may_write(|| false);
    let recorder = report.recorder();
    let reporter = report.start_with(store.clone(), recorder.clone());
    claim(&recorder, &command("1"), ClaimActivity::FirstRun);
    sleep(Duration::from_secs(100)).await;
    reporter.stop().await;
    for job in keys::live_jobs(&Tenant::default()).iter().chain(&keys::node_jobs()) {
        assert_eq!(store.attach(job, &PageRequest::new(0, 1)).await.unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn reporter_shows_open_streams_in_every_minute() {
    let reporting = Reporting::start();
    let tenant = Tenant::default();
    let stream = |change| reporting.recorder.record(Activity::Stream { tenant: &tenant, change });
    stream(StreamActivity::Opened);
    stream(StreamActivity::Opened);
    stream(StreamActivity::Closed);
    stream(StreamActivity::Ended("slow"));
    sleep(Duration::from_secs(200)).await;
    let minutes = reporting.minutes().await;
    assert!(minutes.len() >= 3, "{}", minutes.len());
    assert!(minutes.iter().all(|entry| entry.streams.open == 1));
    assert_eq!(minutes.iter().map(|entry| entry.streams.slow).sum::<u64>(), 1);
    assert_eq!(open_streams(&minutes)["node-1"], 1);
    assert_eq!(reporting.live().await.len(), 1, "nothing else happened");
}

#[tokio::test(start_paused = true)]
async fn reader_pages_through_the_logs_of_several_periods() {
    let reporting = Reporting::start();
    for _ in 0..30 {
        claim(&reporting.recorder, &command("1"), ClaimActivity::FirstRun);
        sleep(Duration::from_secs(600)).await;
    }
    let (mut cursor, mut seen) = (None, Vec::new());
    loop {
        let page = reporting.reader().live(&Tenant::default(), cursor, 4).await.unwrap();
        seen.extend(page.entries.iter().map(|entry| entry.at));
        let Some(next) = page.next else { break };
        cursor = Some(next.to_string().parse().unwrap());
    }
    assert!(seen.windows(2).all(|pair| pair[0] > pair[1]), "newest first, each once: {seen:?}");
    assert!((12..30).contains(&seen.len()), "two hours and more, not all: {}", seen.len());
}

/// A log remembers each event for as long as events keep coming, so no log may be appended to for ever.
#[tokio::test(start_paused = true)]
async fn log_slots_expire_before_they_are_written_again() {
    let reporting = Reporting::start();
    let mut last = 0;
    for _ in 0..40 {
        claim(&reporting.recorder, &command("1"), ClaimActivity::FirstRun);
        sleep(Duration::from_secs(1800)).await;
        for job in keys::live_jobs(&Tenant::default()) {
            let attached = reporting.store.attach(&job, &PageRequest::new(0, 0)).await.unwrap();
            last = last.max(attached.map_or(0, |attached| attached.head.last));
        }
    }
    assert_eq!(last, 4, "two hours of entries in a log");
}

#[test]
fn keys_of_operators_cannot_be_named_by_callers() {
    assert!(Tenant::new("").is_err() && Key::job(&Tenant::default(), "", "audit").is_err());
    let tenant = Tenant::default().scoped("c0ffee").unwrap();
    assert_eq!(keys::audit_job(&tenant), keys::audit_job(&Tenant::default()));
    let queue = crate::queue::QueueName::outbox();
    let [pause, session] = [keys::pause_record(&queue), keys::session_record("ab")];
    assert_eq!((pause.tenant().as_str(), pause.name()), ("", "pause:outbox"));
    assert_eq!((session.tenant().as_str(), session.name()), ("", "session:ab"));
    assert!(keys::audit_job(&tenant).is_operators_job());
}
