//! The log: each job is one hash, and each partition has a tail that points to its jobs' entries.

mod append;
mod attach;
mod find_seq;
pub(crate) mod sweep;
mod tail;

use std::sync::atomic::AtomicU16;

use async_trait::async_trait;
use hapax_core::log::{
    Appended, Attached, Cursor, Epochs, LogEvent, LogRetention, PageRequest, PartitionTail,
    SeqSearch, TailPosition,
};
use hapax_core::{Key, Log, StoreError, StoreResult, Watch};
use tokio::sync::OnceCell;

use crate::script::PARTITIONS;
use crate::store::RedisStore;

/// The configured number of partitions, and whether it equals the number stored in Redis.
pub(crate) struct PartitionCount {
    count: u16,
    checked: OnceCell<()>,
    /// The partition at which the next sweep begins.
    next_swept: AtomicU16,
}

impl PartitionCount {
    pub(crate) fn new(count: u16) -> Self {
        Self { count, checked: OnceCell::new(), next_swept: AtomicU16::new(0) }
    }
}

impl RedisStore {
    /// Refuses a store whose jobs are spread over another number of partitions: they would not be found.
    pub(crate) async fn check_partitions(&self) -> StoreResult<()> {
        if self.partitions.checked.initialized() {
            return Ok(());
        }
        self.compare_partitions(b"0").await
    }

    /// Like [`RedisStore::check_partitions`], and stores the number if there is none.
    async fn store_partitions(&self) -> StoreResult<()> {
        let store = async || self.compare_partitions(b"1").await;
        self.partitions.checked.get_or_try_init(store).await.copied()
    }

    async fn compare_partitions(&self, write: &[u8]) -> StoreResult<()> {
        let count = self.partitions.count.to_string();
        let name = self.names.partitions();
        let reply = self.client.run(&PARTITIONS, &[&name], &[count.as_bytes(), write]).await?;
        match reply.read::<Option<String>>()? {
            Some(stored) if stored != count => Err(StoreError::Incompatible {
                reason: format!(
                    "its events are spread over {stored} partitions, and {count} are configured"
                ),
            }),
            _ => Ok(()),
        }
    }

    fn partition(&self, job: &Key) -> u16 {
        job.partition(self.partitions.count)
    }

    fn job_name(&self, job: &Key) -> String {
        self.names.partition(self.partition(job), &job.canonical())
    }
}

fn cursor(epochs: &Epochs, offset: u64) -> Cursor {
    Cursor { epoch: epochs.at(offset), offset }
}

#[async_trait]
impl Log for RedisStore {
    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>> {
        self.store_partitions().await?;
        append::append(self, events, keep).await
    }

    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>> {
        self.check_partitions().await?;
        attach::attach(self, job, page).await
    }

    async fn find_seq(&self, job: &Key, seq: u64) -> StoreResult<Option<SeqSearch>> {
        self.check_partitions().await?;
        find_seq::find_seq(self, job, seq).await
    }

    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> StoreResult<Vec<PartitionTail>> {
        self.check_partitions().await?;
        tail::tail(self, from, at_most).await
    }

    fn partitions(&self) -> u16 {
        self.partitions.count
    }

    fn listen(&self, job: &Key) -> Watch {
        self.watch_key(job)
    }
}
