//! Retention, trimming, epochs and attaching.

use std::slice::from_ref;
use std::time::Duration;

use hapax_core::Key;
use hapax_core::log::{Appended, Cursor, LogRetention};

use super::{
    KEEP, append, append_with, attach, attach_all, closing, entry, event, event_with_payload,
    offsets, published,
};
use crate::context::{LONG, LawContext, SHORT};
use crate::suite::laws;

laws![
    key job;
    job_expires_as_a_whole_after_its_retention,
    expired_job_starts_again_with_a_greater_epoch,
    closed_job_is_open_again_after_its_retention,
    appended_event_renews_the_retention,
    refused_event_does_not_change_the_retention,
    last_event_decides_the_retention,
    trimming_keeps_the_newest_entries,
    trimming_keeps_dedup_and_state,
    trimming_leaves_other_jobs_alone,
    attach_returns_entries_after_the_offset,
    attach_returns_at_most_the_requested_number,
    reader_can_continue_from_every_kept_cursor,
    attach_reads_head_and_entries_atomically,
    sweep_removes_only_expired_jobs,
];

const BRIEF: LogRetention = LogRetention { retention: SHORT, max_entries: 10_000 };
/// A retention longer than any test, and shorter than `LONG`.
const LESS: LogRetention =
    LogRetention { retention: Duration::from_secs(1800), max_entries: 10_000 };

async fn job_expires_as_a_whole_after_its_retention(s: LawContext, job: Key) {
    let events = [event(&job, "s", 50), event(&job, "s", 51)];
    append_with(&s, &events, &BRIEF).await;
    s.outlive(SHORT).await;
    assert_eq!(attach(&s, &job, 0, 10).await, None);
    // Neither dedup nor state is left: the same identity may have other content, and a lower seq
    // becomes the state.
    published(&s, &[event_with_payload(&job, "s", 50, "else".into())]).await;
    let attached = attach_all(&s, &job).await;
    assert_eq!((attached.head.state.as_ref().unwrap().seq, offsets(&attached)), (50, vec![1]));
    assert_eq!(attached.head.state.as_ref().unwrap().payload, "else");
}

async fn expired_job_starts_again_with_a_greater_epoch(s: LawContext, job: Key) {
    let mut epochs = Vec::new();
    for _ in 0..3 {
        let answers = append_with(&s, &[event(&job, "s", 1)], &BRIEF).await;
        let [Appended::Published(at)] = answers[..] else { panic!("{answers:?}") };
        assert_eq!(at.offset, 1);
        epochs.push(at.epoch);
        s.outlive(SHORT).await;
    }
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
    published(&s, &[event(&job, "s", 1)]).await;
    let head = attach_all(&s, &job).await.head;
    assert!(!epochs.iter().any(|epoch| head.holds(Cursor { epoch: *epoch, offset: 1 })));
    assert!(head.holds(head.end()));
}

async fn closed_job_is_open_again_after_its_retention(s: LawContext, job: Key) {
    append_with(&s, &[closing(event(&job, "s", 9))], &BRIEF).await;
    s.outlive(SHORT).await;
    published(&s, &[event(&job, "s", 1)]).await;
    assert!(!attach_all(&s, &job).await.head.closed);
}

async fn appended_event_renews_the_retention(s: LawContext, job: Key) {
    append_with(&s, &[event(&job, "s", 1)], &LESS).await;
    let left = attach_all(&s, &job).await.head.expires_in;
    assert!(left > Duration::ZERO && left <= LESS.retention, "{left:?}");
    append(&s, &[event(&job, "s", 2)]).await;
    let left = attach_all(&s, &job).await.head.expires_in;
    assert!(left > LESS.retention && left <= LONG, "{left:?}");
}

async fn refused_event_does_not_change_the_retention(s: LawContext, job: Key) {
    append_with(&s, &[event(&job, "s", 1), closing(event(&job, "s", 2))], &LESS).await;
    let other = event_with_payload(&job, "s", 2, "else".into());
    for (event, expected) in [
        (event(&job, "s", 1), None),
        (other, Some(Appended::Conflict)),
        (event(&job, "s", 3), Some(Appended::Closed)),
    ] {
        let answer = append(&s, &[event]).await[0];
        assert!(expected.map_or(matches!(answer, Appended::Duplicate(_)), |e| e == answer));
        assert!(attach_all(&s, &job).await.head.expires_in <= LESS.retention, "after {answer:?}");
    }
}

async fn last_event_decides_the_retention(s: LawContext, job: Key) {
    append(&s, &[event(&job, "s", 1)]).await;
    append_with(&s, &[event(&job, "s", 2)], &BRIEF).await;
    s.outlive(SHORT).await;
    assert_eq!(attach(&s, &job, 0, 10).await, None);
}

async fn trimming_keeps_the_newest_entries(s: LawContext, job: Key) {
    let keep = LogRetention { max_entries: 3, ..KEEP };
    for seq in 1..=5 {
        append_with(&s, &[event(&job, "s", seq)], &keep).await;
    }
    let attached = attach_all(&s, &job).await;
    assert_eq!((attached.head.first, attached.head.last), (3, 5));
    assert_eq!(offsets(&attached), [3, 4, 5]);
    let call: Vec<_> = (6..=12).map(|seq| event(&job, "s", seq)).collect();
    append_with(&s, &call, &keep).await;
    let attached = attach_all(&s, &job).await;
    assert_eq!((attached.head.first, offsets(&attached)), (10, vec![10, 11, 12]));
    append_with(&s, &[event(&job, "s", 13)], &LogRetention { max_entries: 1, ..KEEP }).await;
    let attached = attach_all(&s, &job).await;
    assert_eq!((attached.head.first, offsets(&attached)), (13, vec![13]));
}

async fn trimming_keeps_dedup_and_state(s: LawContext, job: Key) {
    let keep = LogRetention { max_entries: 2, ..KEEP };
    let high = event(&job, "s", 99);
    let first = append_with(&s, from_ref(&high), &keep).await[0];
    for seq in 1..=5 {
        append_with(&s, &[event(&job, "s", seq)], &keep).await;
    }
    let Appended::Published(at) = first else { panic!("{first:?}") };
    let attached = attach_all(&s, &job).await;
    assert_eq!(attached.head.state, Some(entry(&high, at)));
    assert_eq!(attached.head.first, 5);
    assert_eq!(append(&s, &[high]).await, [Appended::Duplicate(at)]);
    assert_eq!(
        append(&s, &[event_with_payload(&job, "s", 99, "else".into())]).await,
        [Appended::Conflict]
    );
    assert_eq!(offsets(&attach_all(&s, &job).await), [5, 6]);
}

async fn trimming_leaves_other_jobs_alone(s: LawContext, _: Key) {
    // Append to many jobs, so that some share a partition with the trimmed one, whatever the number
    // of partitions is.
    let jobs: Vec<_> = (0..20).map(|i| s.job(&format!("k{i}"))).collect();
    let events: Vec<_> =
        jobs.iter().flat_map(|job| (0..3).map(|seq| event(job, "s", seq))).collect();
    published(&s, &events).await;
    let more: Vec<_> = (10..30).map(|seq| event(&jobs[0], "s", seq)).collect();
    append_with(&s, &more, &LogRetention { max_entries: 1, ..KEEP }).await;
    assert_eq!(offsets(&attach_all(&s, &jobs[0]).await), [23]);
    for job in &jobs[1..] {
        assert_eq!(offsets(&attach_all(&s, job).await), [1, 2, 3]);
    }
}

async fn attach_returns_entries_after_the_offset(s: LawContext, job: Key) {
    let events: Vec<_> = (0..6).map(|seq| event(&job, "s", seq)).collect();
    append_with(&s, &events, &LogRetention { max_entries: 4, ..KEEP }).await;
    for (after, expected) in
        [(0, 3..7), (1, 3..7), (2, 3..7), (3, 4..7), (5, 6..7), (6, 7..7), (1 << 40, 7..7)]
    {
        let attached = attach(&s, &job, after, 100).await.unwrap();
        assert_eq!(offsets(&attached), expected.collect::<Vec<_>>(), "after {after}");
        assert_eq!((attached.head.first, attached.head.last), (3, 6));
    }
}

async fn attach_returns_at_most_the_requested_number(s: LawContext, job: Key) {
    let events: Vec<_> = (0..10).map(|seq| event(&job, "s", seq)).collect();
    published(&s, &events).await;
    let mut read = Vec::new();
    for size in [3, 3, 3, 1, 0] {
        let page = attach(&s, &job, read.len() as u64, 3).await.unwrap();
        assert_eq!((page.entries.len(), page.head.last), (size, 10));
        read.extend(page.entries);
    }
    assert_eq!(read, attach_all(&s, &job).await.entries);
    let head_alone = attach(&s, &job, 0, 0).await.unwrap();
    assert_eq!((head_alone.entries, head_alone.head.last), (vec![], 10));
}

async fn reader_can_continue_from_every_kept_cursor(s: LawContext, job: Key) {
    let events: Vec<_> = (0..9).map(|seq| event(&job, "s", seq)).collect();
    let mut cursors = published(&s, &events[..5]).await;
    let answers = append_with(&s, &events[5..], &LogRetention { max_entries: 4, ..KEEP }).await;
    cursors.extend(answers.into_iter().map(|answer| match answer {
        Appended::Published(at) => at,
        other => panic!("{other:?}"),
    }));
    let attached = attach_all(&s, &job).await;
    for cursor in &cursors {
        // The first kept entry is 6, so a reader that has seen 5 misses nothing.
        assert_eq!(attached.head.holds(*cursor), cursor.offset >= 5, "{cursor}");
    }
    for entry in &attached.entries {
        assert_eq!(entry.at, cursors[usize::try_from(entry.at.offset).unwrap() - 1]);
    }
}

/// A reader on another node polls while a writer appends.
async fn attach_reads_head_and_entries_atomically(s: LawContext, job: Key) {
    let (job, reader) = (job, s.reopened().await);
    let writer = tokio::spawn({
        let (s, job) = (s.clone(), job.clone());
        async move {
            for seq in 0..60 {
                append_with(&s, &[event(&job, "s", seq)], &LogRetention { max_entries: 7, ..KEEP })
                    .await;
                tokio::task::yield_now().await;
            }
        }
    });
    let mut last = 0;
    while last < 60 {
        tokio::task::yield_now().await;
        let Some(attached) = attach(&reader, &job, 0, 100).await else { continue };
        let head = &attached.head;
        assert_eq!(offsets(&attached), (head.first..=head.last).collect::<Vec<_>>());
        assert_eq!(head.first, head.last.saturating_sub(6).max(1));
        assert_eq!(head.state.as_ref().unwrap().at.offset, head.last);
        assert!(head.last >= last, "went back");
        last = head.last;
    }
    writer.await.unwrap();
}

async fn sweep_removes_only_expired_jobs(s: LawContext, _: Key) {
    let (gone, kept) = (s.job("gone"), s.job("kept"));
    append_with(&s, &[event(&gone, "s", 1)], &BRIEF).await;
    published(&s, &[event(&kept, "s", 1)]).await;
    s.outlive(SHORT).await;
    s.sweep(1).await;
    assert_eq!(attach(&s, &gone, 0, 10).await, None);
    assert_eq!(offsets(&attach_all(&s, &kept).await), [1]);
    assert_eq!(published(&s, &[event(&gone, "s", 1)]).await[0].offset, 1);
}
