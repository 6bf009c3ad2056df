//! The tail of a partition, and wake-ups.
//!
//! Other laws append to the same partitions: entries of their tenants are skipped, and their
//! expired entries may be reported as lost.

use std::collections::HashMap;

use hapax_core::Key;
use hapax_core::log::{LogEvent, LogRetention, PartitionTail, TailChange, TailPosition};

use super::{KEEP, append, append_with, attach_all, closing, event, event_with_payload, published};
use crate::context::{LawContext, SHORT, expect_woken};
use crate::suite::laws;

laws![
    key job;
    tail_shows_each_entry_once_in_offset_order,
    tail_shows_only_what_was_appended,
    tail_continues_from_every_position,
    tail_end_is_after_all_entries,
    tail_start_is_before_all_kept_entries,
    tail_reads_many_partitions_at_once,
    tail_position_is_valid_on_every_node,
    tail_skips_nothing_under_concurrent_appends,
    tail_reports_trimmed_entries_as_lost,
    tail_reports_an_expired_job_as_lost,
    tail_reports_nothing_lost_that_is_kept,
    listener_is_woken_at_an_append,
    listener_on_another_node_is_woken,
];

fn partition(s: &LawContext, job: &Key) -> u16 {
    job.partition(s.store.partitions())
}

async fn tail(
    s: &LawContext,
    partition: u16,
    from: &TailPosition,
    at_most: usize,
) -> PartitionTail {
    let mut tails = s.store.tail(&[(partition, from.clone())], at_most).await.unwrap();
    assert_eq!(tails.len(), 1, "one answer per question");
    let tail = tails.remove(0);
    assert!(tail.changes.len() <= at_most);
    tail
}

async fn end(s: &LawContext, partition: u16) -> TailPosition {
    let tail = tail(s, partition, &TailPosition::end(), 100).await;
    assert_eq!((tail.changes, tail.lost), (vec![], false));
    tail.next
}

/// The changes of this law's jobs that a reader has seen, and its next position.
struct Read {
    changes: Vec<TailChange>,
    next: TailPosition,
    lost: bool,
}

impl Read {
    fn offsets(&self, job: &Key) -> Vec<u64> {
        self.changes
            .iter()
            .filter(|change| change.job == *job)
            .map(|change| change.offset)
            .collect()
    }
}

/// Reads page by page until a page is empty.
async fn drain(s: &LawContext, partition: u16, from: &TailPosition, at_most: usize) -> Read {
    let mut read = Read { changes: Vec::new(), next: from.clone(), lost: false };
    for _ in 0..10_000 {
        let page = tail(s, partition, &read.next, at_most).await;
        read.lost |= page.lost;
        read.next = page.next;
        if page.changes.is_empty() {
            return read;
        }
        let mine = page.changes.into_iter().filter(|change| s.is_mine(&change.job));
        read.changes.extend(mine);
    }
    panic!("the tail has no end");
}

/// Jobs that share a partition.
fn neighbours(s: &LawContext, count: usize) -> (u16, Vec<Key>) {
    let first = partition(s, &s.job("k"));
    let jobs = (0..).map(|i| s.job(&format!("k{i}"))).filter(|job| partition(s, job) == first);
    (first, jobs.take(count).collect())
}

async fn tail_shows_each_entry_once_in_offset_order(s: LawContext, _: Key) {
    let (partition, jobs) = neighbours(&s, 3);
    let start = end(&s, partition).await;
    let events: Vec<_> = (0..21).map(|i| event(&jobs[i % 3], "s", i as u64)).collect();
    for call in events.chunks(5) {
        published(&s, call).await;
    }
    for at_most in [1, 3, 1000] {
        let read = drain(&s, partition, &start, at_most).await;
        assert_eq!(read.changes.len(), 21);
        for job in &jobs {
            assert_eq!(read.offsets(job), (1..=7).collect::<Vec<_>>(), "{at_most} at once");
        }
    }
}

async fn tail_shows_only_what_was_appended(s: LawContext, job: Key) {
    let start = end(&s, partition(&s, &job)).await;
    published(&s, &[event(&job, "s", 1), closing(event(&job, "s", 2))]).await;
    let refused =
        [event(&job, "s", 1), event_with_payload(&job, "s", 2, "else".into()), event(&job, "s", 3)];
    append(&s, &refused).await;
    let read = drain(&s, partition(&s, &job), &start, 100).await;
    assert_eq!(read.offsets(&job), [1, 2]);
}

async fn tail_continues_from_every_position(s: LawContext, job: Key) {
    let start = end(&s, partition(&s, &job)).await;
    let events: Vec<_> = (0..6).map(|seq| event(&job, "s", seq)).collect();
    published(&s, &events).await;
    let read = drain(&s, partition(&s, &job), &start, 4).await;
    for change in &read.changes {
        let rest = drain(&s, partition(&s, &job), &change.position, 4).await;
        assert_eq!(rest.offsets(&job), (change.offset + 1..=6).collect::<Vec<_>>());
    }
    published(&s, &[event(&job, "s", 7)]).await;
    let rest = drain(&s, partition(&s, &job), &read.next, 4).await;
    assert_eq!(rest.offsets(&job), [7]);
}

async fn tail_end_is_after_all_entries(s: LawContext, job: Key) {
    published(&s, &[event(&job, "s", 1)]).await;
    let end = end(&s, partition(&s, &job)).await;
    assert!(drain(&s, partition(&s, &job), &end, 10).await.offsets(&job).is_empty());
    published(&s, &[event(&job, "s", 2)]).await;
    assert_eq!(drain(&s, partition(&s, &job), &end, 10).await.offsets(&job), [2]);
}

async fn tail_start_is_before_all_kept_entries(s: LawContext, job: Key) {
    let events: Vec<_> = (0..5).map(|seq| event(&job, "s", seq)).collect();
    append_with(&s, &events, &LogRetention { max_entries: 3, ..KEEP }).await;
    let page = tail(&s, partition(&s, &job), &TailPosition::start(), 1).await;
    assert!(!page.lost, "there is nothing to be lost before the start");
    let read = drain(&s, partition(&s, &job), &TailPosition::start(), 500).await;
    assert!(read.offsets(&job).ends_with(&[3, 4, 5]), "{:?}", read.offsets(&job));
}

async fn tail_reads_many_partitions_at_once(s: LawContext, _: Key) {
    let all = s.store.partitions();
    let questions: Vec<_> =
        (0..all).rev().map(|partition| (partition, TailPosition::end())).collect();
    let ends = s.store.tail(&questions, 10).await.unwrap();
    assert_eq!(ends.len(), usize::from(all));
    let jobs: Vec<_> = (0..40).map(|i| s.job(&format!("k{i}"))).collect();
    let events: Vec<_> = jobs.iter().map(|job| event(job, "s", 1)).collect();
    published(&s, &events).await;
    let positions = questions.iter().zip(ends).map(|((partition, _), end)| (*partition, end.next));
    let mut questions: Vec<_> = positions.collect();
    let (mut seen, mut more) = (0, true);
    // Read page by page, because another law may have filled a whole page of the same partition.
    while more {
        let tails = s.store.tail(&questions, 1000).await.unwrap();
        more = tails.iter().any(|tail| !tail.changes.is_empty());
        for ((partition, next), tail) in questions.iter_mut().zip(tails) {
            for change in tail.changes.iter().filter(|change| s.is_mine(&change.job)) {
                assert_eq!(change.job.partition(all), *partition, "in another one's answer");
                seen += 1;
            }
            *next = tail.next;
        }
    }
    assert_eq!(seen, 40);
}

async fn tail_position_is_valid_on_every_node(s: LawContext, _: Key) {
    let (job, other) = (s.job("k{}:%"), s.reopened().await);
    let start = end(&s, partition(&s, &job)).await;
    published(&other, &[event(&job, "s", 1)]).await;
    published(&s, &[event(&job, "s", 2)]).await;
    for node in [&s, &other] {
        let read = drain(node, partition(&s, &job), &start, 10).await;
        assert_eq!(read.offsets(&job), [1, 2]);
        let again = drain(&s, partition(&s, &job), &read.next, 10).await;
        assert!(again.offsets(&job).is_empty());
    }
}

/// Eight writers on two nodes append to jobs of one partition, while a reader follows its tail.
async fn tail_skips_nothing_under_concurrent_appends(s: LawContext, _: Key) {
    const EACH: u64 = 25;
    let nodes = [s.clone(), s.reopened().await];
    let (partition, jobs) = neighbours(&s, 4);
    let mut next = end(&s, partition).await;
    let writers = (0..8_usize).map(|writer| {
        let (s, job) = (nodes[writer % 2].clone(), jobs[writer / 2].clone());
        tokio::spawn(async move {
            let stage = format!("writer{writer}");
            let events: Vec<LogEvent> = (0..EACH).map(|seq| event(&job, &stage, seq)).collect();
            for call in events.chunks(1 + writer % 3) {
                published(&s, call).await;
                tokio::task::yield_now().await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut seen: HashMap<Key, Vec<u64>> = HashMap::new();
    loop {
        let written = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let read = drain(&nodes[1], partition, &next, 7).await;
        next = read.next;
        for change in read.changes {
            seen.entry(change.job).or_default().push(change.offset);
        }
        if written {
            break;
        }
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(seen.len(), jobs.len());
    for offsets in seen.values() {
        assert_eq!(*offsets, (1..=2 * EACH).collect::<Vec<_>>());
    }
}

async fn tail_reports_trimmed_entries_as_lost(s: LawContext, _: Key) {
    let (partition, jobs) = neighbours(&s, 2);
    let start = end(&s, partition).await;
    published(&s, &[event(&jobs[1], "s", 1)]).await;
    let events: Vec<_> = (0..10).map(|seq| event(&jobs[0], "s", seq)).collect();
    append_with(&s, &events, &LogRetention { max_entries: 2, ..KEEP }).await;
    let read = drain(&s, partition, &start, 3).await;
    let offsets = read.offsets(&jobs[0]);
    assert!(read.lost || offsets.len() == 10, "lost, but not reported: {offsets:?}");
    assert!(offsets.ends_with(&[9, 10]) && offsets.is_sorted(), "{offsets:?}");
    assert_eq!(read.offsets(&jobs[1]), [1]);
}

async fn tail_reports_an_expired_job_as_lost(s: LawContext, job: Key) {
    let start = end(&s, partition(&s, &job)).await;
    let brief = LogRetention { retention: SHORT, ..KEEP };
    append_with(&s, &[event(&job, "s", 1), event(&job, "s", 2)], &brief).await;
    s.outlive(SHORT).await;
    s.store.sweep(10_000).await.unwrap();
    published(&s, &[event(&job, "s", 3)]).await;
    let read = drain(&s, partition(&s, &job), &start, 3).await;
    let offsets = read.offsets(&job);
    assert!(read.lost || offsets == [1, 2, 1], "lost, but not reported: {offsets:?}");
    assert_eq!(offsets.last(), Some(&1));
}

async fn tail_reports_nothing_lost_that_is_kept(s: LawContext, job: Key) {
    for seq in 0..50 {
        let start = end(&s, partition(&s, &job)).await;
        published(&s, &[event(&job, "s", seq)]).await;
        let read = drain(&s, partition(&s, &job), &start, 100).await;
        assert_eq!(read.offsets(&job), [seq + 1]);
        // Entries of another law may have been lost, but not in every round.
        if !read.lost {
            return;
        }
    }
    panic!("it always says that something was lost");
}

async fn expect_listener_woken(listening: &LawContext, writing: &LawContext) {
    let job = writing.job("k");
    let append = async { drop(published(writing, &[event(&job, "s", 1)]).await) };
    expect_woken(listening.store.listen(&job), append).await;
    assert_eq!(attach_all(listening, &job).await.head.last, 1);
}

async fn listener_is_woken_at_an_append(s: LawContext, _: Key) {
    expect_listener_woken(&s, &s).await;
}

async fn listener_on_another_node_is_woken(s: LawContext, _: Key) {
    expect_listener_woken(&s.reopened().await, &s).await;
}
