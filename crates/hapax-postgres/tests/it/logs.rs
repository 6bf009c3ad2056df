//! Logs: late commits, timelines, partitions.

use std::time::Duration;

use hapax_core::log::{Appended, Cursor, Log, LogEvent, LogRetention, PageRequest, TailPosition};
use hapax_core::{Fingerprint, Key, Store, StoreError, Swept, Tenant};
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_testkit::{Postgres, TcpProxy};

use crate::{SERVER, client, open};

pub(crate) const KEEP: LogRetention =
    LogRetention { retention: Duration::from_secs(3600), max_entries: 10_000 };

pub(crate) fn job(name: &str) -> Key {
    Key::job(&Tenant::default(), "scan", name).unwrap()
}

pub(crate) fn event(job: &Key, seq: u64) -> LogEvent {
    let payload = bytes::Bytes::from(format!("{{\"seq\":{seq}}}"));
    let fingerprint = Fingerprint::of(&[&payload]);
    LogEvent { job: job.clone(), stage: "s".into(), seq, fingerprint, payload, closes: false }
}

async fn publish(store: &PostgresStore, event: LogEvent) -> Cursor {
    match store.append(&[event], &KEEP).await.unwrap()[..] {
        [Appended::Published(at)] => at,
        ref other => panic!("{other:?}"),
    }
}

/// The store's statement for one event; `$1` is the job's name, `$2` its partition.
const BY_HAND: &str = "SELECT hapax_append('{default}', '{scan}', ARRAY[$1::text], ARRAY[$2::integer], \
     '{1}', '{s}', '{1}', '{f}', '{p}', '{f}', '{3600000}', '{1000}')";

/// Another job of the same partition.
fn neighbour(store: &PostgresStore, of: &Key) -> Key {
    let partition = of.partition(store.partitions());
    (0..)
        .map(|n| job(&format!("n{n}")))
        .find(|j| j.partition(store.partitions()) == partition)
        .unwrap()
}

/// One node's append is not committed for a long time. A tail that took the highest number it saw for
/// the end would pass it by.
#[tokio::test(flavor = "multi_thread")]
async fn tail_never_skips_a_late_commit() {
    let url = SERVER.database("late_append");
    let (slow_node, reader) = (client(&url).await, open(&url));
    reader.ping().await.unwrap();
    for (round, commits) in [true, false, true].into_iter().enumerate() {
        let slow = job(&format!("slow{round}"));
        let quick = neighbour(&reader, &slow);
        let partition = slow.partition(reader.partitions());
        let end =
            reader.tail(&[(partition, TailPosition::end())], 10).await.unwrap().remove(0).next;

        slow_node.batch_execute("BEGIN").await.unwrap();
        slow_node.query(BY_HAND, &[&slow.name(), &i32::from(partition)]).await.unwrap();
        // Only appends to the same partition wait for it.
        let waiting = tokio::spawn({
            let (store, event) = (open(&url), event(&quick, round as u64));
            async move { publish(&store, event).await }
        });
        let elsewhere = (0..).map(|n| job(&format!("e{n}")));
        let elsewhere = elsewhere.skip(round * 10).find(|j| j.partition(256) != partition).unwrap();
        publish(&reader, event(&elsewhere, 1000 + round as u64)).await;
        let early = reader.tail(&[(partition, end.clone())], 10).await.unwrap().remove(0);
        assert_eq!(early.changes, []);
        assert!(!waiting.is_finished());
        slow_node.batch_execute(if commits { "COMMIT" } else { "ROLLBACK" }).await.unwrap();
        waiting.await.unwrap();

        let tail = reader.tail(&[(partition, early.next)], 10).await.unwrap().remove(0);
        let jobs: Vec<_> = tail.changes.iter().map(|change| change.job.clone()).collect();
        assert_eq!(jobs, if commits { vec![slow, quick] } else { vec![quick] });
        assert!(!tail.lost);
    }
}

/// A partition that stays locked costs its own jobs their timeout, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn locked_partition_blocks_only_its_own_jobs() {
    let url = SERVER.database("locked_partition");
    let store =
        PostgresStore::open(PostgresConfig::new(&url).timeout(Duration::from_secs(4))).unwrap();
    open(&url).ping().await.unwrap();
    let (stuck, free) = (job("stuck"), job("free"));
    let partition = i32::from(stuck.partition(256));
    assert_ne!(stuck.partition(256), free.partition(256));
    let mut holder = client(&url).await;
    let tx = holder.transaction().await.unwrap();
    let lock = "SELECT FROM hapax_partitions WHERE partition = $1 FOR UPDATE";
    tx.query(lock, &[&partition]).await.unwrap();
    let waiting = tokio::spawn({
        let (store, event) = (store.clone(), event(&stuck, 1));
        async move { store.append(&[event], &KEEP).await }
    });
    publish(&open(&url), event(&free, 1)).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.is_transient(), "{error}");
    tx.rollback().await.unwrap();
    // The first one may be on its way all the same, and come before this.
    let appended = open(&url).append(&[event(&stuck, 1)], &KEEP).await.unwrap();
    let ([Appended::Published(at)] | [Appended::Duplicate(at)]) = appended[..] else {
        panic!("{appended:?}")
    };
    assert_eq!(at.offset, 1);
}

#[tokio::test]
async fn open_refuses_another_number_of_partitions() {
    let url = SERVER.database("partitions");
    let config = PostgresConfig::new(&url).partitions(4).timeout(Duration::from_secs(60));
    let four = PostgresStore::open(config.clone()).unwrap();
    publish(&four, event(&job("a"), 1)).await;
    let refused = open(&url).ping().await;
    assert!(matches!(refused, Err(StoreError::Incompatible { .. })), "{refused:?}");
    let again = PostgresStore::open(config).unwrap();
    assert_eq!(
        again
            .attach(&job("a"), &PageRequest::new(0, 10).with_state())
            .await
            .unwrap()
            .unwrap()
            .head
            .last,
        1
    );
}

/// A failover: the server goes on in another timeline, and has lost the last entries.
#[tokio::test(flavor = "multi_thread")]
async fn failover_that_lost_entries_starts_a_new_epoch() {
    let server = Postgres::with(&[("restore_command", "/bin/false")]);
    let store = open(&server.url());
    let (job, partition) = (job("j"), job("j").partition(256));
    let mut seen = Vec::new();
    for seq in 1..=5 {
        seen.push(publish(&store, event(&job, seq)).await);
    }
    let all = store.tail(&[(partition, TailPosition::start())], 10).await.unwrap().remove(0);
    // The standby that takes over has not seen the last two.
    server.psql(
        "DELETE FROM hapax_entries WHERE place > 3; UPDATE hapax_jobs SET last = 3, state_place = 3, \
         state_seq = 3, position = position - 2; UPDATE hapax_partitions SET last = last - 2 WHERE last > 0",
    );
    let folder = server.psql("SHOW data_directory");
    server.psql(&format!("COPY (SELECT 1) TO PROGRAM 'touch {folder}/recovery.signal'"));
    server.restart();

    let store = open(&server.url());
    // The server answers queries before it has ended its recovery.
    while store.ping().await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let at = publish(&store, event(&job, 6)).await;
    assert_eq!(at.offset, 4);
    assert!(at.epoch > seen[0].epoch);
    let attached =
        store.attach(&job, &PageRequest::new(0, 10).with_state()).await.unwrap().unwrap();
    assert_eq!(attached.entries.len(), 4);
    let held: Vec<_> = seen.iter().map(|cursor| attached.head.holds(*cursor)).collect();
    assert_eq!(held, [true, true, false, false, false], "everybody is told at the loss");
    for cursor in &seen[2..] {
        assert_eq!(attached.head.resume(*cursor), Cursor { epoch: at.epoch, offset: 3 });
    }
    // The tail's numbers are given out again; its reader goes back to where the histories part.
    let tail = store.tail(&[(partition, all.next)], 10).await.unwrap().remove(0);
    let offsets: Vec<_> = tail.changes.iter().map(|change| change.offset).collect();
    assert_eq!((offsets, tail.lost), (vec![4], false));
    // A restart alone is no failover.
    server.restart();
    let store = open(&server.url());
    assert_eq!(publish(&store, event(&job, 7)).await.epoch, at.epoch);
}

/// The usual design's one lifetime for all: what is forgotten leaves nothing behind.
#[tokio::test]
async fn sweep_deletes_expired_jobs_completely() {
    let url = SERVER.database("sweep_jobs");
    let store = open(&url);
    let brief = LogRetention { retention: Duration::from_millis(1), ..KEEP };
    for n in 0..20 {
        let events: Vec<_> = (0..30).map(|seq| event(&job(&format!("j{n}")), seq)).collect();
        let _ = store.append(&events, &brief).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(30)).await;
    // The job starts again, and its old log is unreachable at once.
    publish(&store, event(&job("j0"), 1)).await;
    assert_eq!(
        store
            .attach(&job("j0"), &PageRequest::new(0, 100).with_state())
            .await
            .unwrap()
            .unwrap()
            .entries
            .len(),
        1
    );
    // 19 jobs, and the entries of those and of the first one's old log.
    let all = Swept { count: 19 + 20 * 30, more: false };
    assert_eq!(store.sweep(1000).await.unwrap(), all);
    let left = "SELECT (SELECT count(*) FROM hapax_jobs), (SELECT count(*) FROM hapax_entries), \
                (SELECT count(*) FROM hapax_forgotten)";
    assert_eq!(SERVER.psql_in("sweep_jobs", left), "1|1|0");
}

/// Entries of forgotten jobs were once deleted one job at a time. The wire is slow, so that a call of
/// the sweep has time for 40 statements only.
#[tokio::test]
async fn fault_12_sweep_deletes_entries_of_many_jobs_in_sets() {
    let url = SERVER.database("sweep_sets");
    let store = open(&url);
    let brief = LogRetention { retention: Duration::from_millis(1), ..KEEP };
    for part in 0..4 {
        let events: Vec<_> = (0..500).map(|n| event(&job(&format!("j{part}-{n}")), 1)).collect();
        let _ = store.append(&events, &brief).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(30)).await;
    let wire = TcpProxy::to(SERVER.port());
    wire.delay_answers(Duration::from_millis(50));
    let url = url.replace(&format!(":{}/", SERVER.port()), &format!(":{}/", wire.port()));
    let slow = PostgresConfig::new(url).timeout(Duration::from_secs(4));
    let slow = PostgresStore::open(slow).unwrap();
    let (mut calls, mut more) = (0, true);
    while more {
        more = crate::retry_timeouts(async || slow.sweep(5000).await).await.unwrap().more;
        calls += 1;
        assert!(calls <= 20, "the sweep has no end");
    }
    let left = "SELECT (SELECT count(*) FROM hapax_jobs), (SELECT count(*) FROM hapax_entries), \
                (SELECT count(*) FROM hapax_forgotten)";
    assert_eq!(SERVER.psql_in("sweep_sets", left), "0|0|0");
}
