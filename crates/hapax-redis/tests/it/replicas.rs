//! Writes that a failover may lose, with and without waiting for replicas.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use hapax_core::log::{Appended, Cursor, LogRetention, TailPosition};
use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{Log, Queue, StoreError, Tenant};
use hapax_redis::RedisStore;
use hapax_testkit::{Redis, RedisCluster};

fn waiting(url: &str, limit: Duration) -> RedisStore {
    RedisStore::open(config(url).timeout(limit).wait_for_replicas(1, Duration::from_millis(500)))
        .unwrap()
}

#[tokio::test]
async fn write_without_replica_confirmation_is_an_error() {
    let redis = Redis::start();
    let store = waiting(&redis.url(), WAIT_TIMEOUT);
    let call = events(&job("a"), 0..2);
    for _ in 0..2 {
        let answer = store.append(&call, &LogRetention::default()).await;
        let Err(StoreError::Unavailable { reason, .. }) = answer else { panic!("{answer:?}") };
        assert!(reason.contains("replicas"), "{reason}");
    }
    let (queue, item) = (QueueName::outbox(), QueueItem::new(&Tenant::default(), "t", "{}"));
    let answer = store.enqueue(&queue, std::slice::from_ref(&item)).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    // The unconfirmed writes were executed.
    let plain = patient(&redis.url());
    let again = plain.append(&call, &LogRetention::default()).await.unwrap();
    assert!(again.iter().all(|answer| matches!(answer, Appended::Duplicate(_))), "{again:?}");
    assert_eq!(plain.enqueue(&queue, &[item]).await.unwrap(), [Enqueued::Duplicate]);
    // Calls that do not wait for replicas succeed.
    assert_eq!(attached(&store, &job("a")).await.entries.len(), 2);
    let url = format!("{}?wait_replicas=1&wait_ms=100", redis.url());
    let answer = patient(&url).append(&call, &LogRetention::default()).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_failover_keeps_what_a_replica_confirmed() {
    let cluster = RedisCluster::start();
    let store = waiting(&cluster.url(), Duration::from_secs(10));
    let jobs: Vec<_> = (0..8).map(|i| job(&format!("job-{i}"))).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = jobs.iter().map(|job| spawn_appends(&store, job, &stop)).collect();
    let name = job_key(&jobs[0]);
    for job in &jobs {
        until_it_works(|| grown(&store, job, 3)).await;
    }
    let old = cluster.master_of(&name);
    cluster.kill_node(old);
    cluster.wait_for_new_master_of(&name, old);
    // The new master has no replica to confirm writes until the old master is back.
    cluster.restart_node(old);
    cluster.wait_until_ok();
    let last = until_it_works(|| read_job(&store, &jobs[0])).await.unwrap().head.last;
    until_it_works(|| grown(&store, &jobs[0], last + 3)).await;
    stop.store(true, Ordering::SeqCst);
    for (job, writer) in jobs.iter().zip(writers) {
        let acknowledged = writer.await.unwrap();
        let log = until_it_works(|| read_job(&store, job)).await.unwrap();
        let entries: HashMap<_, _> = log.entries.iter().map(|e| (e.at, e.seq)).collect();
        for (seq, cursor) in (0..).zip(&acknowledged) {
            assert_eq!(entries.get(cursor), Some(&seq), "{cursor} was acknowledged");
            // Behind the last entry before the failover everybody gets a gap: some might have been lost.
            let is_last = log.head.epochs.end_of(cursor.epoch) == Some(cursor.offset);
            assert!(log.head.holds(*cursor) != is_last, "{cursor}");
        }
    }
}

/// The replica of a master in a cluster.
fn replica<'a>(cluster: &'a RedisCluster, master: &Redis) -> &'a Redis {
    let info = master.cli(&["INFO", "replication"]);
    let line = info.lines().find(|line| line.starts_with("slave0:")).expect("a replica");
    let port = line.split(&['=', ','][..]).nth(3).expect("a port");
    cluster.node(port.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_gives_a_gap_to_readers_of_lost_entries_and_those_behind() {
    let (cluster, store) = cluster();
    let job = job("a");
    let kept = published(&store, &events(&job, 0..3)).await;
    let name = job_key(&job);
    let master = cluster.node(cluster.master_of(&name));
    let replica = replica(&cluster, master);
    wait_until_replicated(master, &partition_key(&job, "barrier"));
    // Nothing more reaches the replica, not even its socket buffers.
    replica.stop();
    master.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    let lost = published(&store, &events(&job, 3..5)).await;
    let (_, position, _) = drained(&store, &job, &TailPosition::start()).await;
    cluster.kill_node(master.port());
    replica.cont();
    cluster.wait_for_new_master_of(&name, master.port());

    let before = until_it_works(|| read_job(&store, &job)).await.unwrap().head;
    assert_eq!(before.last, 3);
    assert!(before.holds(kept[2]) && !before.holds(lost[0]) && !before.holds(lost[1]));
    // A lost event that is appended again is no duplicate, and may get another offset.
    let (call, keep) = (events(&job, [4, 3]), LogRetention::default());
    let answers = until_it_works(|| store.append(&call, &keep)).await;
    let [Appended::Published(fourth), Appended::Published(fifth)] = answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!((fourth.offset, fifth.offset), (4, 5));
    assert!(fourth.epoch > kept[2].epoch);
    let head = attached(&store, &job).await.head;
    assert!(kept[..2].iter().chain([&fourth, &fifth]).all(|cursor| head.holds(*cursor)));
    assert!(!head.holds(kept[2]), "entries after it were lost");
    assert!(!head.holds(lost[0]) && !head.holds(lost[1]));
    for seen in [kept[2], lost[0], lost[1]] {
        assert_eq!(head.resume(seen), Cursor { epoch: fourth.epoch, offset: 3 });
    }
    let (offsets, _, gap) = drained(&store, &job, &position).await;
    assert_eq!((offsets, gap), (vec![4, 5], false), "each entry that is there, once");
}
