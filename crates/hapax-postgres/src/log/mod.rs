//! `Log` on PostgreSQL: concurrent appends are batched, reads take one statement each.

pub(crate) mod append;
mod attach;
mod tail;

use std::collections::BTreeMap;

use async_trait::async_trait;
use hapax_core::log::{
    Appended, Attached, LogEvent, LogRetention, PageRequest, PartitionTail, SeqSearch, TailPosition,
};
use hapax_core::{Key, Log, StoreResult, Watch};

use crate::PostgresStore;
use append::AppendCall;

#[async_trait]
impl Log for PostgresStore {
    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>> {
        let mut parts: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (i, event) in events.iter().enumerate() {
            parts.entry(event.job.partition(self.partitions)).or_default().push(i);
        }
        let start = |(partition, part): (&u16, &Vec<usize>)| {
            let events = part.iter().map(|i| events[*i].clone()).collect();
            self.appends.start(AppendCall { partition: *partition, events, keep: *keep })
        };
        let started: Vec<_> = parts.iter().map(start).collect();
        let mut answers = vec![Appended::Closed; events.len()];
        for (part, answer) in parts.values().zip(started) {
            for (i, answer) in part.iter().zip(answer?.await?) {
                answers[*i] = answer;
            }
        }
        Ok(answers)
    }

    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>> {
        self.pool.run(attach::attach(&mut self.pool.session(), job, page)).await
    }

    async fn find_seq(&self, job: &Key, seq: u64) -> StoreResult<Option<SeqSearch>> {
        self.pool.run(attach::find_seq(&mut self.pool.session(), job, seq)).await
    }

    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> StoreResult<Vec<PartitionTail>> {
        self.pool.run(tail::tail(&mut self.pool.session(), from, at_most)).await
    }

    fn partitions(&self) -> u16 {
        self.partitions
    }

    fn listen(&self, job: &Key) -> Watch {
        self.wakes.watch(job)
    }
}
