//! The log on Redis: restarts, lost entries, slots, retention, foreign types.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use hapax_core::bus::{Bus, FollowFrom, Follower, FrameKind, NextFrames};
use hapax_core::log::{Appended, Cursor, LogRetention, PARTITIONS, PageRequest, TailPosition};
use hapax_core::{Key, Log, Store, StoreError};
use hapax_redis::RedisStore;
use hapax_testkit::{Redis, RedisCluster, TcpProxy};

/// Another job in the same partition.
fn neighbour(of: &Key) -> Key {
    let same = |job: &Key| job.partition(PARTITIONS) == of.partition(PARTITIONS);
    (0..).map(|i| job(&format!("neighbour-{i}"))).find(same).unwrap()
}

#[tokio::test]
async fn hole_14_a_busy_job_never_evicts_another_jobs_events() {
    let (_redis, store) = server_with(&["--appendonly", "no"]);
    let quiet = job("quiet");
    let busy = neighbour(&quiet);
    let seen = published(&store, &events(&quiet, 0..3)).await;
    let keep = LogRetention { max_entries: 100, ..LogRetention::default() };
    let all = events(&busy, 0..12_000);
    let mut cursors = Vec::new();
    for call in all.chunks(1000) {
        for answer in store.append(call, &keep).await.unwrap() {
            let Appended::Published(at) = answer else { panic!("{answer:?}") };
            cursors.push(at);
        }
    }
    assert_eq!(attached(&store, &quiet).await.entries.len(), 3);
    assert!(attached(&store, &quiet).await.head.holds(seen[0]));
    let (offsets, _, lost) = drained(&store, &quiet, &TailPosition::start()).await;
    assert_eq!((offsets, lost), (vec![1, 2, 3], false));
    // Readers of the busy job get a gap, and its duplicates are still recognised.
    let head = attached(&store, &busy).await.head;
    assert_eq!((head.first, head.last, head.state.as_ref().unwrap().seq), (11_901, 12_000, 11_999));
    assert!(!head.holds(cursors[0]) && head.holds(cursors[11_950]));
    let again = store.append(&all[..1], &keep).await.unwrap();
    assert_eq!(again, [Appended::Duplicate(cursors[0])]);
}

/// Two masters may begin the same job in one millisecond while one of them is being demoted: the last digits of the epoch tell
/// them apart.
#[tokio::test]
async fn epoch_ends_in_digits_of_the_servers_replication_id() {
    let (redis, store) = server();
    let info = redis.cli(&["INFO", "replication"]);
    let id = info.lines().find_map(|line| line.strip_prefix("master_replid:")).unwrap();
    let digits = u64::from_str_radix(&id[..3], 16).unwrap() % 100;
    let first = job("first");
    // The first job of a partition begins its history, too, which takes the epoch before.
    let begun = published(&store, &events(&first, 0..1)).await;
    assert_eq!(begun[0].epoch.0 % 100, (digits + 1) % 100);
    let mut others = (0..).map(|n| job(&format!("other-{n}")));
    let mut next = || others.find(|job| job.partition(PARTITIONS) == first.partition(PARTITIONS));
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let at = published(&store, &events(&next().unwrap(), 0..1)).await;
        assert_eq!(at[0].epoch.0 % 100, digits);
    }
}

#[tokio::test]
async fn fault_33_idle_tails_are_swept() {
    let (redis, store) = server();
    let job = job("idle");
    let brief = LogRetention { retention: Duration::from_millis(50), ..LogRetention::default() };
    let _ = store.append(&events(&job, 0..3), &brief).await.unwrap();
    let (tail, start) = (partition_key(&job, "tail"), TailPosition::start());
    assert_eq!(redis.cli(&["XLEN", &tail]), "3");
    let first =
        store.tail(&[(job.partition(PARTITIONS), start.clone())], 1).await.unwrap().remove(0).next;
    let (_, last, _) = drained(&store, &job, &start).await;
    let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
    while redis.cli(&["XLEN", &tail]) != "0" {
        assert!(
            std::time::Instant::now() < deadline,
            "the tail of an idle partition is kept for ever"
        );
        let _ = store.sweep(2).await.unwrap();
    }
    // A reader that has not read the entries is told that they are gone.
    assert!(drained(&store, &job, &first).await.2);
    assert!(!drained(&store, &job, &last).await.2);
}

#[tokio::test]
async fn hole_15_log_state_and_dedup_have_one_lifetime() {
    let (redis, store) = server();
    let (job, keep) = (job("a"), LogRetention::default());
    let (early, late) = (event(&job, 10, "{}"), event(&job, 11, "{}"));
    let first = store.append(std::slice::from_ref(&early), &keep).await.unwrap();
    assert_eq!(redis.cli(&["KEYS", "hapax:*job*"]), job_key(&job), "all of a job is one key");
    let brief = LogRetention { retention: Duration::from_millis(100), ..keep };
    let _ = store.append(&[late], &brief).await.unwrap();
    while store.attach(&job, &PageRequest::new(0, 10).with_state()).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A design in which dedup outlives the log would skip this event, and lose it.
    let again = store.append(&[early], &keep).await.unwrap();
    let (Appended::Published(old), Appended::Published(new)) = (first[0], again[0]) else {
        panic!("{first:?}, {again:?}")
    };
    assert_eq!((old.offset, new.offset), (1, 1));
    assert!(new.epoch > old.epoch);
    let head =
        store.attach(&job, &PageRequest::new(0, 10).with_state()).await.unwrap().unwrap().head;
    assert!(head.holds(new) && !head.holds(old));
}

#[tokio::test]
async fn hole_18_all_keys_of_a_step_are_in_one_slot() {
    let (cluster, store) = cluster();
    for name in ["plain", "a{b}c", "}{", "{", "{}", "%7B", "{p1}"] {
        published(&store, &events(&job(name), 0..2)).await;
        assert_eq!(attached(&store, &job(name)).await.entries.len(), 2, "{name}");
        let (offsets, _, _) = drained(&store, &job(name), &TailPosition::start()).await;
        assert_eq!(offsets, [1, 2], "{name}");
        let tag = partition_key(&job(name), "head");
        let slot = |key: &str| cluster.node(cluster.ports()[0]).cli(&["CLUSTER", "KEYSLOT", key]);
        assert_eq!(slot(&tag), slot(&job_key(&job(name))));
        assert_eq!(slot(&tag), slot(&partition_key(&job(name), "tail")));
    }
}

#[tokio::test]
async fn restart_without_loss_gives_readers_no_gap() {
    let (redis, store) = server();
    let job = job("a");
    let mut cursors = published(&store, &events(&job, 0..5)).await;
    let (seen, position, _) = drained(&store, &job, &TailPosition::start()).await;
    assert_eq!(seen.len(), 5);
    redis.kill();
    redis.restart();
    let before = until_it_works(|| read_job(&store, &job)).await.unwrap();
    cursors.extend(published(&store, &events(&job, 5..7)).await);
    assert!(cursors[5].epoch > cursors[4].epoch, "something might have been lost");
    let after = attached(&store, &job).await;
    for cursor in &cursors {
        assert!(after.head.holds(*cursor), "{cursor}");
        assert!(cursor.offset > 5 || before.head.holds(*cursor), "{cursor}");
    }
    let (offsets, _, lost) = drained(&store, &job, &position).await;
    assert_eq!((offsets, lost), (vec![6, 7], false));
}

/// Eighteen changes of the replication id: more than the sixteen epochs that a job stores.
#[tokio::test]
async fn epochs_beyond_sixteen_give_a_gap() {
    let (redis, store) = server_with(&["--enable-debug-command", "local"]);
    let job = job("a");
    let first = published(&store, &events(&job, [0])).await[0];
    let start = drained(&store, &job, &TailPosition::start()).await.1;
    for seq in 1..=18 {
        assert_eq!(redis.cli(&["DEBUG", "CHANGE-REPL-ID"]), "OK");
        // Another client, because a client caches the replication id for a second.
        published(&patient(&redis.url()), &events(&job, [seq])).await;
    }
    let attached = attached(&store, &job).await;
    assert_eq!(attached.head.epochs.to_string().split(',').count(), 16);
    assert!(!attached.head.holds(first));
    assert!(
        attached.head.holds(attached.entries[18].at) && attached.head.holds(attached.head.end())
    );
    let (offsets, _, lost) = drained(&store, &job, &start).await;
    assert!(lost && offsets.ends_with(&[17, 18, 19]), "{offsets:?}");
}

async fn follow(store: &RedisStore, job: &Key, from: FollowFrom) -> Follower {
    let bus = Bus::new(Arc::new(store.clone()));
    bus.follow(job.scope(), job.name(), from).await.unwrap().expect("the job is open")
}

/// The frames up to this offset: `gap`, `snapshot`, or the offset of an entry. Stops at the second gap.
async fn frames_until(follower: &mut Follower, last: u64) -> (Vec<String>, Vec<Cursor>) {
    let (mut kinds, mut cursors) = (Vec::new(), Vec::new());
    loop {
        let next = tokio::time::timeout(WAIT_TIMEOUT, follower.next()).await.expect("frames come");
        let NextFrames::Frames(frames) = next else { panic!("{next:?}") };
        for frame in frames {
            cursors.extend(frame.at());
            kinds.push(match (frame.kind(), frame.at()) {
                (FrameKind::Entry, Some(at)) => at.offset.to_string(),
                (FrameKind::Snapshot, _) => "snapshot".into(),
                _ => "gap".into(),
            });
        }
        let gaps = kinds.iter().filter(|kind| *kind == "gap").count();
        if gaps > 1 || kinds.last() == Some(&last.to_string()) {
            return (kinds, cursors);
        }
    }
}

fn numbers(range: std::ops::RangeInclusive<u64>) -> Vec<String> {
    range.map(|offset| offset.to_string()).collect()
}

#[tokio::test]
async fn fault_03_job_of_eighteen_epochs_is_replayed_once() {
    let (redis, store) = server_with(&["--enable-debug-command", "local"]);
    let job = job("a");
    let first = published(&store, &events(&job, [0])).await[0];
    for seq in 1..=18 {
        assert_eq!(redis.cli(&["DEBUG", "CHANGE-REPL-ID"]), "OK");
        published(&patient(&redis.url()), &events(&job, [seq])).await;
    }
    published(&store, &events(&job, 19..320)).await;
    let mut follower = follow(&store, &job, FollowFrom::Cursor(first)).await;
    let (kinds, cursors) = frames_until(&mut follower, 320).await;
    let told = ["gap", "snapshot"].map(str::to_owned);
    assert_eq!(kinds, [&told[..], &numbers(1..=320)].concat());
    // An id that was just handed out is good.
    for seen in [0, 1, 3, 17, 200] {
        let mut resumed = follow(&store, &job, FollowFrom::Cursor(cursors[seen])).await;
        let from = cursors[seen].offset + 1;
        assert_eq!(frames_until(&mut resumed, 320).await.0, numbers(from..=320));
    }
}

#[tokio::test]
async fn fault_13_lossy_restart_gives_every_reader_a_gap_at_the_loss() {
    let (redis, store) = server_with(&["--appendonly", "no"]);
    let job = job("a");
    let kept = published(&store, &events(&job, 0..3)).await;
    redis.cli(&["SAVE"]);
    published(&store, &events(&job, 3..5)).await;
    redis.kill();
    redis.restart();
    until_it_works(|| store.ping()).await;
    published(&store, &events(&job, 10..12)).await;
    let expected = |from: u64| {
        let told = ["gap", "snapshot"].map(str::to_owned);
        [&numbers(from..=3)[..], &told, &numbers(4..=5)].concat()
    };
    for seen in &kept {
        let mut follower = follow(&store, &job, FollowFrom::Cursor(*seen)).await;
        let (kinds, cursors) = frames_until(&mut follower, 5).await;
        assert_eq!(kinds, expected(seen.offset + 1), "{seen}");
        // A reader that was told is not told again.
        let snapshot = cursors[cursors.len() - 3];
        let mut resumed = follow(&store, &job, FollowFrom::Cursor(snapshot)).await;
        assert_eq!(frames_until(&mut resumed, 5).await.0, numbers(4..=5));
    }
    let mut new = follow(&store, &job, FollowFrom::Start).await;
    assert_eq!(frames_until(&mut new, 5).await.0, expected(1));
}

#[tokio::test]
async fn restart_with_loss_gives_readers_of_lost_entries_a_gap() {
    let (redis, store) = server_with(&["--appendonly", "no"]);
    let job = job("a");
    let kept = published(&store, &events(&job, 0..3)).await;
    redis.cli(&["SAVE"]);
    let lost = published(&store, &events(&job, 3..5)).await;
    let (_, position, _) = drained(&store, &job, &TailPosition::start()).await;
    redis.kill();
    redis.restart();
    let before = until_it_works(|| read_job(&store, &job)).await.unwrap().head;
    assert!(before.holds(kept[2]) && !before.holds(lost[0]) && !before.holds(lost[1]));
    let others = published(&store, &events(&job, 10..12)).await;
    let head = attached(&store, &job).await.head;
    assert_eq!((others[0].offset, others[1].offset), (lost[0].offset, lost[1].offset));
    assert!(kept[..2].iter().chain(&others).all(|cursor| head.holds(*cursor)));
    assert!(!head.holds(kept[2]), "entries after it were lost");
    assert!(!head.holds(lost[0]) && !head.holds(lost[1]), "they are other entries now");
    // The tail's reader had read entries that did not survive.
    let (offsets, _, lost) = drained(&store, &job, &position).await;
    assert_eq!((offsets, lost), (vec![4, 5], false));
}

#[tokio::test]
async fn server_that_lost_everything_starts_a_new_log() {
    let (redis, store) = server_with(&["--appendonly", "no"]);
    let job = job("a");
    let lost = published(&store, &events(&job, 0..3)).await;
    let (_, position, _) = drained(&store, &job, &TailPosition::start()).await;
    redis.kill();
    redis.restart();
    assert!(until_it_works(|| read_job(&store, &job)).await.is_none());
    let new = published(&store, &events(&job, 0..2)).await;
    assert!(new[0].epoch > lost[0].epoch && new[0].offset == 1);
    let (offsets, _, lost) = drained(&store, &job, &position).await;
    assert_eq!((offsets, lost), (vec![1, 2], true));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_killed_repeatedly_keeps_acknowledged_entries() {
    let redis = Redis::start();
    // New jobs in each round, because a job stores only its last sixteen epochs.
    for round in 0..hapax_conformance::scale(1) {
        keeps_what_it_acknowledged(&redis, round).await;
    }
}

async fn keeps_what_it_acknowledged(redis: &Redis, round: u32) {
    let store = patient(&redis.url());
    let stop = Arc::new(AtomicBool::new(false));
    let jobs: Vec<_> = (0..6).map(|i| job(&format!("job-{round}-{i}"))).collect();
    let appending: Vec<_> = jobs.iter().map(|job| spawn_appends(&store, job, &stop)).collect();
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        redis.kill();
        redis.restart();
    }
    for job in &jobs {
        until_it_works(|| grown(&store, job, 2)).await;
    }
    stop.store(true, Ordering::SeqCst);
    for (job, appending) in jobs.iter().zip(appending) {
        let acknowledged = appending.await.unwrap();
        let log = attached(&store, job).await;
        assert!(acknowledged.len() > 1 && log.entries.len() >= acknowledged.len());
        for (seq, cursor) in (0..).zip(&acknowledged) {
            let entry = &log.entries[usize::try_from(cursor.offset).unwrap() - 1];
            assert_eq!((entry.at, entry.seq), (*cursor, seq));
            assert!(log.head.holds(*cursor));
        }
        let (offsets, _, _) = drained(&store, job, &TailPosition::start()).await;
        assert_eq!(offsets, (1..=log.head.last).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn log_with_a_foreign_value_is_corrupt_and_unchanged() {
    let (redis, store) = server();
    let job = job("a");
    published(&store, &events(&neighbour(&job), [0])).await;
    let keys = [job_key(&job), partition_key(&job, "head"), partition_key(&job, "tail")];
    for key in keys {
        redis.cli(&["RENAME", &key, "aside"]);
        redis.cli(&["SET", &key, "foreign"]);
        let before = dump(&redis);
        for call in [events(&job, [0]), events(&job, 0..3)] {
            let answer = store.append(&call, &LogRetention::default()).await;
            assert!(matches!(answer, Err(StoreError::Corrupt { .. })), "{key}: {answer:?}");
        }
        assert_eq!(dump(&redis), before, "{key}");
        redis.cli(&["DEL", &key]);
        redis.cli(&["RENAME", "aside", &key]);
    }
    published(&store, &events(&job, [0])).await;
    redis.cli(&["HSET", &job_key(&job), "now", "something else"]);
    let before = dump(&redis);
    let answer = store.append(&events(&job, [1, 2]), &LogRetention::default()).await;
    assert!(matches!(answer, Err(StoreError::Corrupt { .. })), "{answer:?}");
    let answer = store.attach(&job, &PageRequest::new(0, 10).with_state()).await;
    assert!(matches!(answer, Err(StoreError::Corrupt { .. })), "{answer:?}");
    assert_eq!(dump(&redis), before);
}

#[tokio::test]
async fn append_with_a_lost_reply_is_done_once() {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let store = patient(&format!("redis://127.0.0.1:{}", wire.port()));
    let job = job("a");
    published(&store, &events(&job, [0])).await;
    wire.drop_next_answer_to(b"the payload");
    let answer =
        store.append(&[event(&job, 1, "the payload")], &LogRetention::default()).await.unwrap();
    assert_eq!(wire.dropped_answers(), 1);
    assert!(matches!(answer[0], Appended::Duplicate(at) if at.offset == 2), "{answer:?}");
    assert_eq!(attached(&store, &job).await.entries.len(), 2);
}

#[tokio::test]
async fn tail_sweep_of_expired_pointers_is_reported_as_lost() {
    let (redis, store) = server();
    // A job whose first append maintains the tail: one in ten, chosen by digest.
    let tends = |job: &Key| job.digest().is_multiple_of(10);
    let job = (0..).map(|i| job(&format!("tends-{i}"))).find(tends).unwrap();
    let from = [(job.partition(PARTITIONS), TailPosition::end())];
    let empty = store.tail(&from, 10).await.unwrap().remove(0).next;
    // Appended at the beginning of 1970.
    let (tail, old) = (partition_key(&job, "tail"), neighbour(&job).canonical());
    redis.cli(&["XADD", &tail, "1000-0", "1", &old]);
    published(&store, &events(&job, 0..2)).await;
    assert_eq!(redis.cli(&["XLEN", &tail]), "2");
    let (offsets, _, lost) = drained(&store, &job, &empty).await;
    assert_eq!((offsets, lost), (vec![1, 2], true));
    let (offsets, end, lost) = drained(&store, &job, &TailPosition::start()).await;
    assert_eq!((offsets, lost), (vec![1, 2], false), "nothing is lost before the start");
    assert_eq!(drained(&store, &job, &end).await, (vec![], end, false));
}

async fn refuses_another_number_of_partitions(url: &str) {
    let store = patient(url);
    store.ping().await.unwrap();
    published(&store, &events(&job("a"), [0])).await;
    let limit = Duration::from_secs(20);
    let other = RedisStore::open(config(url).partitions(128).timeout(limit)).unwrap();
    let answers = [
        other.ping().await,
        other.examine().await.map(drop),
        other.append(&events(&job("a"), [0]), &LogRetention::default()).await.map(drop),
        other.attach(&job("a"), &PageRequest::new(0, 1).with_state()).await.map(drop),
        other.tail(&[(0, TailPosition::start())], 1).await.map(drop),
    ];
    for answer in answers {
        let Err(StoreError::Incompatible { reason }) = answer else { panic!("{answer:?}") };
        assert!(reason.contains("256") && reason.contains("128"), "{reason}");
    }
}

#[tokio::test]
async fn partition_count_that_differs_is_refused() {
    let redis = Redis::start();
    refuses_another_number_of_partitions(&redis.url()).await;
    let cluster = RedisCluster::start();
    refuses_another_number_of_partitions(&cluster.url()).await;
}

/// Longer than the time since 1970, before which the tail's sweep has no stream id.
#[tokio::test]
async fn log_retention_of_a_century_is_accepted() {
    let (_redis, store) = server();
    let century = Duration::from_secs(100 * 366 * 86_400);
    let retention = LogRetention { retention: century, ..LogRetention::default() };
    for seq in 0..3 {
        let answers = store.append(&events(&job("a"), [seq, seq + 10]), &retention).await.unwrap();
        assert!(
            answers.iter().all(|answer| matches!(answer, Appended::Published(_))),
            "{answers:?}"
        );
    }
}
