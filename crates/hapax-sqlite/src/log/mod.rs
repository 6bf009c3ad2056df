//! `Log` on SQLite: the writer thread appends, reader threads attach and tail on a snapshot.

mod append;
mod attach;
mod job;
mod sweep;
mod tail;

use async_trait::async_trait;
use hapax_core::log::{
    Appended, Attached, LogEvent, LogRetention, MAX_APPEND, PageRequest, PartitionTail, SeqSearch,
    TailPosition,
};
use hapax_core::{Key, Log, StoreResult, Watch};

use crate::SqliteStore;
use crate::error::internal_error;
use crate::session::Session;
use crate::writer::WriteInfo;

pub(crate) use sweep::{SweptJob, sweep_job};

/// The weight of an event in a batch, beside its payload: writing its rows takes as long as this many
/// bytes.
const EVENT_BYTES: usize = 1024;

#[async_trait]
impl Log for SqliteStore {
    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>> {
        if events.len() > MAX_APPEND {
            return Err(internal_error("too many events in one append"));
        }
        let bytes = events.iter().map(|event| event.payload.len() + EVENT_BYTES).sum();
        let mut wakes: Vec<_> = events.iter().map(|event| event.job.digest()).collect();
        wakes.dedup();
        let (partitions, events, keep) = (self.partitions(), events.to_vec(), *keep);
        let append =
            move |session: Session<'_>| append::append(session, partitions, &events, &keep);
        self.write(WriteInfo { bytes, wakes, ..WriteInfo::default() }, append).await
    }

    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>> {
        let (job, page) = (job.clone(), *page);
        self.read(move |session| attach::attach(session, &job, &page)).await
    }

    async fn find_seq(&self, job: &Key, seq: u64) -> StoreResult<Option<SeqSearch>> {
        let job = job.clone();
        self.read(move |session| attach::find_seq(session, &job, seq)).await
    }

    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> StoreResult<Vec<PartitionTail>> {
        let from = from.to_vec();
        self.read(move |session| tail::tail(session, &from, at_most)).await
    }

    fn partitions(&self) -> u16 {
        self.0.config.partitions
    }

    fn listen(&self, job: &Key) -> Watch {
        self.watch_key(job)
    }
}
