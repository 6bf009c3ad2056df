//! Laws about entries that were acknowledged and lost: readers and writers can tell. They need a
//! [`FailoverServer`].

use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::log::{Appended, Cursor, TailPosition};
use hapax_core::{Key, Store};

use super::{append, attach_all, event, offsets, published};
use crate::context::LawContext;
use crate::suite::laws;

laws![
    key job;
    entries_after_a_loss_have_a_greater_epoch,
    cursors_of_lost_entries_are_not_held,
    cursor_right_before_a_loss_is_not_held,
    lost_event_is_new_and_kept_event_is_a_duplicate,
    tail_shows_entries_after_a_loss_to_whoever_read_lost_ones,
];

/// A server whose newest writes can be lost, as by a failover to a replica that was behind.
#[async_trait]
pub trait FailoverServer: Send + Sync {
    /// Lets everything that was written so far survive.
    async fn keep(&self);

    /// Loses everything that was written since [`FailoverServer::keep`]. The store answers again when this returns.
    async fn lose(&self);
}

/// A store, and the server that it uses.
pub struct FailoverStore {
    /// The store. No other one uses the server.
    pub store: Arc<dyn Store>,
    /// The server of the store.
    pub server: Arc<dyn FailoverServer>,
}

impl LawContext {
    async fn with_failover(&self) -> Option<(Self, Arc<dyn FailoverServer>)> {
        let FailoverStore { store, server } = self.subject.failover().await?;
        Some((Self { store, ..self.clone() }, server))
    }
}

/// Appends three entries that are kept and two that are lost, then two others. Returns their cursors.
async fn lose_two(s: &LawContext, server: &dyn FailoverServer, job: &Key) -> [Vec<Cursor>; 3] {
    let events =
        |seqs: std::ops::Range<u64>| -> Vec<_> { seqs.map(|seq| event(job, "s", seq)).collect() };
    let kept = published(s, &events(0..3)).await;
    server.keep().await;
    let lost = published(s, &events(3..5)).await;
    server.lose().await;
    let after = published(s, &events(10..12)).await;
    [kept, lost, after]
}

async fn entries_after_a_loss_have_a_greater_epoch(s: LawContext, job: Key) {
    let Some((s, server)) = s.with_failover().await else { return };
    let [kept, lost, after] = lose_two(&s, &*server, &job).await;
    let at = |cursors: &[Cursor]| cursors.iter().map(|at| at.offset).collect::<Vec<_>>();
    assert_eq!((at(&kept), at(&lost), at(&after)), (vec![1, 2, 3], vec![4, 5], vec![4, 5]));
    assert!(after[0].epoch > lost[1].epoch && after[0].epoch == after[1].epoch, "{after:?}");
    let attached = attach_all(&s, &job).await;
    let seen: Vec<_> = attached.entries.iter().map(|entry| entry.at).collect();
    assert_eq!(seen, [kept, after.clone()].concat());
    assert_eq!(attached.head.end(), after[1]);
    for entry in &attached.entries {
        assert_eq!(attached.head.epochs.at(entry.at.offset), entry.at.epoch);
    }
}

async fn cursors_of_lost_entries_are_not_held(s: LawContext, job: Key) {
    let Some((s, server)) = s.with_failover().await else { return };
    let [kept, lost, after] = lose_two(&s, &*server, &job).await;
    let head = attach_all(&s, &job).await.head;
    for cursor in kept[..2].iter().chain(&after) {
        assert!(head.holds(*cursor), "{cursor} in {head:?}");
    }
    for cursor in &lost {
        assert!(!head.holds(*cursor), "{cursor} in {head:?}");
        let resumes = head.resume(*cursor);
        assert_eq!((resumes.offset, head.holds(resumes)), (3, true), "{resumes} in {head:?}");
    }
}

/// A reader there has seen nothing of the lost entries, and misses them all the same.
async fn cursor_right_before_a_loss_is_not_held(s: LawContext, job: Key) {
    let Some((s, server)) = s.with_failover().await else { return };
    let [kept, _, after] = lose_two(&s, &*server, &job).await;
    let attached = attach_all(&s, &job).await;
    let head = &attached.head;
    assert!(!head.holds(kept[2]), "{} in {head:?}", kept[2]);
    let told = head.resume(kept[2]);
    assert_eq!(told, Cursor { epoch: after[0].epoch, offset: 3 });
    assert!(head.holds(told), "a reader that was told is not told again");
    // Readers from further back get the entries up to the loss, and are told there.
    assert_eq!(head.up_to_loss(&attached.entries).len(), 3);
    assert_eq!(offsets(&attached), [1, 2, 3, 4, 5]);
}

async fn lost_event_is_new_and_kept_event_is_a_duplicate(s: LawContext, job: Key) {
    let Some((s, server)) = s.with_failover().await else { return };
    let [kept, _, _] = lose_two(&s, &*server, &job).await;
    let repeated = append(&s, &[event(&job, "s", 2), event(&job, "s", 4)]).await;
    assert_eq!(repeated[0], Appended::Duplicate(kept[2]));
    let Appended::Published(at) = repeated[1] else { panic!("{repeated:?}") };
    assert_eq!(at.offset, 6);
}

async fn tail_shows_entries_after_a_loss_to_whoever_read_lost_ones(s: LawContext, job: Key) {
    let Some((s, server)) = s.with_failover().await else { return };
    let partition = job.partition(s.store.partitions());
    let tail = async |from: TailPosition| {
        let tails = s.store.tail(&[(partition, from)], 100).await.expect("the store answers");
        tails.into_iter().next().expect("one answer for one partition")
    };
    published(&s, &[event(&job, "s", 1)]).await;
    server.keep().await;
    published(&s, &[event(&job, "s", 2), event(&job, "s", 3)]).await;
    let read = tail(TailPosition::start()).await;
    assert_eq!(read.changes.len(), 3);
    server.lose().await;
    published(&s, &[event(&job, "s", 7)]).await;
    let next = tail(read.next).await;
    let shown: Vec<_> = next.changes.iter().map(|change| change.offset).collect();
    assert!(shown.contains(&2), "{next:?}");
}
