//! The log: jobs, each in one hash, and the tail of each partition.

mod append;
mod attach;
mod tail;

use async_trait::async_trait;
use hapax_core::log::{Appended, Attached, Cursor, Epochs, Event, Keep, Position, Tail};
use hapax_core::{Key, Log, StoreError, Watch};
use tokio::sync::OnceCell;

use crate::script::PARTITIONS;
use crate::store::RedisStore;

/// How many partitions there are, and whether that was found in Redis, too.
pub(crate) struct Partitions {
    count: u16,
    agreed: OnceCell<()>,
}

impl Partitions {
    pub(crate) fn new(count: u16) -> Self {
        Self { count, agreed: OnceCell::new() }
    }
}

impl RedisStore {
    /// Refuses where jobs are spread over another number of partitions: they would not be found.
    pub(crate) async fn check_partitions(&self) -> Result<(), StoreError> {
        if self.partitions.agreed.initialized() {
            return Ok(());
        }
        self.compare_partitions(b"0").await.map(drop)
    }

    /// The same, and writes the number down where there is none.
    async fn agree_on_partitions(&self) -> Result<(), StoreError> {
        let agreement = async || self.compare_partitions(b"1").await.map(drop);
        self.partitions.agreed.get_or_try_init(agreement).await.copied()
    }

    async fn compare_partitions(&self, write: &[u8]) -> Result<(), StoreError> {
        let count = self.partitions.count.to_string();
        let name = self.naming.partitions();
        let answer = self.calls.run(&PARTITIONS, &[&name], &[count.as_bytes(), write]).await?;
        match answer.read::<Option<String>>()? {
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
        self.naming.partition(self.partition(job), &job.canonical())
    }
}

/// Where an entry is. Its epoch may be forgotten, after many failovers: then any other will do, since no
/// cursor of that time is held.
fn cursor(epochs: &Epochs, offset: u64) -> Cursor {
    Cursor { epoch: epochs.at(offset).unwrap_or_else(|| epochs.last()), offset }
}

#[async_trait]
impl Log for RedisStore {
    async fn append(&self, events: &[Event], keep: &Keep) -> Result<Vec<Appended>, StoreError> {
        self.agree_on_partitions().await?;
        append::append(self, events, keep).await
    }

    async fn attach(
        &self,
        job: &Key,
        after: u64,
        at_most: usize,
    ) -> Result<Option<Attached>, StoreError> {
        self.check_partitions().await?;
        attach::attach(self, job, after, at_most).await
    }

    async fn tail(
        &self,
        from: &[(u16, Position)],
        at_most: usize,
    ) -> Result<Vec<Tail>, StoreError> {
        self.check_partitions().await?;
        tail::tail(self, from, at_most).await
    }

    fn partitions(&self) -> u16 {
        self.partitions.count
    }

    fn listen(&self, job: &Key) -> Watch {
        self.watched(job)
    }
}
