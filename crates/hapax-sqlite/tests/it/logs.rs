//! Logs: rows left in the file, and wake-ups of readers.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use hapax_core::log::{Appended, LogEvent, LogRetention, PageRequest, TailPosition};
use hapax_core::{Log, ManualClock, Store, StoreError, Swept};
use hapax_sqlite::SqliteStore;

const BRIEF: LogRetention = LogRetention { retention: HOUR, max_entries: 10_000 };

async fn fill(store: &SqliteStore, name: &str, events: u64) {
    let events: Vec<_> = (0..events).map(|seq| event(name, seq)).collect();
    for call in events.chunks(1000) {
        let answers = store.append(call, &BRIEF).await.unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Appended::Published(_))));
    }
}

fn count(place: &Place, what: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {what}");
    place.stranger().query_row(&sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn sweep_deletes_a_large_job_in_pieces() {
    let (place, clock) = (Place::new(), Arc::new(ManualClock::default()));
    let store = SqliteStore::open(place.config().clock(clock.clone())).unwrap();
    fill(&store, "large", 4500).await;
    fill(&store, "small", 1).await;
    fill(&store, "revived", 2).await;
    clock.advance(HOUR / 2);
    let _ = store.append(&[event("revived", 9)], &BRIEF).await.unwrap();
    clock.advance(HOUR / 2);
    assert_eq!(store.sweep(2).await.unwrap(), Swept { count: 2, more: true });
    assert_eq!(count(&place, "hapax_entries"), 4500 - 2000 + 1 + 3);
    assert!(
        store.attach(&job("large"), &PageRequest::new(0, 1).with_state()).await.unwrap().is_none(),
        "over is over"
    );
    let swept = store.sweep(100).await.unwrap();
    assert_eq!(swept, Swept { count: 4, more: false }, "three pieces and the small one");
    assert_eq!((count(&place, "hapax_jobs"), count(&place, "hapax_entries")), (1, 3));
    assert_eq!(store.sweep(100).await.unwrap(), Swept { count: 0, more: false });
    let kept = store
        .attach(&job("revived"), &PageRequest::new(0, 10).with_state())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(kept.entries.len(), 3);
    clock.advance(HOUR);
    assert_eq!(store.sweep(100).await.unwrap(), Swept { count: 1, more: false });
    assert_eq!(count(&place, "hapax_jobs"), 0);
}

/// The sweep once ended after a thousand postponed jobs, and reported that nothing was left.
#[tokio::test]
async fn fault_12_sweep_reaches_jobs_behind_many_revived_ones() {
    let (place, clock) = (Place::new(), Arc::new(ManualClock::default()));
    let store = SqliteStore::open(place.config().clock(clock.clone())).unwrap();
    let append_to_each = async |seq| {
        for jobs in (0..2500).collect::<Vec<_>>().chunks(500) {
            let events: Vec<_> = jobs.iter().map(|n| event(&format!("j{n}"), seq)).collect();
            let _ = store.append(&events, &BRIEF).await.unwrap();
        }
    };
    append_to_each(1).await;
    clock.advance(Duration::from_millis(1));
    fill(&store, "over", 1).await;
    clock.advance(HOUR / 2);
    append_to_each(2).await;
    clock.advance(HOUR / 2);
    let mut swept = Swept { count: 0, more: true };
    while swept.more {
        let step = store.sweep(100).await.unwrap();
        swept = Swept { count: swept.count + step.count, more: step.more };
    }
    assert_eq!((swept.count, count(&place, "hapax_jobs")), (1, 2500));
}

#[tokio::test]
async fn append_trims_payloads_and_frees_their_room() {
    let (place, store) = Place::with_store();
    let three = LogRetention { max_entries: 3, ..BRIEF };
    let _ = store.append(&[event("a", 99)], &three).await.unwrap();
    for seq in 0..20 {
        let _ = store.append(&[event("a", seq)], &three).await.unwrap();
    }
    assert_eq!(count(&place, "hapax_entries"), 21, "identities stay");
    assert_eq!(count(&place, "hapax_entries WHERE payload IS NOT NULL"), 4, "and the state");
    let attached =
        store.attach(&job("a"), &PageRequest::new(0, 100).with_state()).await.unwrap().unwrap();
    assert_eq!(
        (
            attached.head.state.as_ref().unwrap().seq,
            &attached.head.state.as_ref().unwrap().payload[..]
        ),
        (99, &b"99"[..])
    );
    let _ = store.append(&[event("a", 100)], &three).await.unwrap();
    assert_eq!(count(&place, "hapax_entries WHERE payload IS NOT NULL"), 3);
}

/// After the file was deleted or restored from a backup, a reader is told that entries were lost.
#[tokio::test]
async fn tail_position_of_another_file_is_lost() {
    let (one, two) = (Place::new(), Place::new());
    let (long, short) = (one.store(), two.store());
    fill(&long, "a", 9).await;
    fill(&short, "a", 2).await;
    let partition = job("a").partition(long.partitions());
    let end = long.tail(&[(partition, TailPosition::end())], 10).await.unwrap().remove(0).next;
    let tail = short.tail(&[(partition, end)], 10).await.unwrap().remove(0);
    assert!(tail.lost);
    assert_eq!(tail.changes.iter().map(|c| c.offset).collect::<Vec<_>>(), [1, 2]);

    let old = long
        .attach(&job("a"), &PageRequest::new(0, 0).with_state())
        .await
        .unwrap()
        .unwrap()
        .head
        .end();
    drop(long);
    one.closed().await;
    one.remove_files();
    // The clock is in the epoch, and no two logs begin at the same moment here.
    tokio::time::sleep(Duration::from_millis(2)).await;
    let anew = one.store();
    fill(&anew, "a", 20).await;
    let head =
        anew.attach(&job("a"), &PageRequest::new(0, 0).with_state()).await.unwrap().unwrap().head;
    assert!(!head.holds(old), "a cursor of the lost log is not taken for one of this");
}

#[tokio::test]
async fn append_to_a_full_file_stores_nothing() {
    let place = Place::new();
    let store = SqliteStore::open(place.config().max_bytes(1 << 20)).unwrap();
    let big = |seq| LogEvent { payload: vec![7; 50_000].into(), ..event("a", seq) };
    let mut acknowledged = 0;
    let full = loop {
        match store.append(&[big(2 * acknowledged), big(2 * acknowledged + 1)], &BRIEF).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 30, "the limit was not kept");
    };
    assert!(matches!(full, StoreError::Full { .. }), "{full:?}");
    let attached =
        store.attach(&job("a"), &PageRequest::new(0, 1000).with_state()).await.unwrap().unwrap();
    assert_eq!(attached.head.last, 2 * acknowledged);
    assert_eq!(attached.entries.len() as u64, 2 * acknowledged);
}

#[tokio::test(flavor = "multi_thread")]
async fn writer_commits_many_appends_at_once() {
    let (place, store) = Place::with_store();
    settled(&store, &command("open"), "the file").await;
    let (before, other) = (store.commits(), place.stranger());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.append(&[event("a", n)], &BRIEF).await.unwrap() })
        })
        .collect();
    other.execute_batch("ROLLBACK").unwrap();
    for task in tasks {
        assert!(matches!(task.await.unwrap()[0], Appended::Published(_)));
    }
    let commits = store.commits() - before;
    assert!(commits < 64, "{commits} commits for 64 appends");
    assert_eq!(
        store
            .attach(&job("a"), &PageRequest::new(0, 0).with_state())
            .await
            .unwrap()
            .unwrap()
            .head
            .last,
        64
    );
}

/// The other process: follows the tail of one partition until it has seen the closing event.
#[tokio::test]
#[ignore = "the second process of the test below"]
async fn reader() {
    let store = crate::common::inherited();
    let partition = job("a").partition(store.partitions());
    let mut listen = store.listen(&job("a"));
    let mut out = std::io::stdout();
    writeln!(out, "\nready").unwrap();
    let mut next = TailPosition::start();
    loop {
        let tail = store.tail(&[(partition, next.clone())], 7).await.unwrap().remove(0);
        next = tail.next;
        for change in &tail.changes {
            writeln!(out, "saw {}", change.offset).unwrap();
            let entry = store
                .attach(&change.job, &PageRequest::new(change.offset - 1, 1).with_state())
                .await
                .unwrap()
                .unwrap();
            if entry.entries[0].closes {
                return;
            }
        }
        if tail.changes.is_empty() {
            // This loop does not poll: without a wake-up it never ends.
            listen.changed(Duration::MAX).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_in_another_process_sees_each_entry_once() {
    let (place, store) = Place::with_store();
    fill(&store, "a", 10).await;
    let mut reader = start_process(this_binary(), "logs::reader", &place);
    let mut lines = lines_of(&mut reader);
    assert!(lines.any(|line| line.unwrap() == "ready"));
    let nodes = [store, place.store()];
    for seq in 10..200 {
        let store = &nodes[usize::try_from(seq % 2).unwrap()];
        let event = LogEvent { closes: seq == 199, ..event("a", seq) };
        let _ = store.append(&[event], &BRIEF).await.unwrap();
    }
    let rest = tokio::task::spawn_blocking(move || -> Vec<u64> {
        lines.filter_map(|line| line.unwrap().strip_prefix("saw ")?.parse().ok()).collect()
    });
    let seen = tokio::time::timeout(PATIENT, rest).await.expect("hints").unwrap();
    assert_eq!(seen, (1..=200).collect::<Vec<_>>());
    assert!(reader.wait().unwrap().success());
}
