//! The events that are published, and their publishers.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::Store;
use hapax_core::bus::{Bus, BusConfig, ClosingEvent, NewEvent};
use hapax_core::log::Appended;
use hapax_workload::{BenchError, BenchOperation};
use serde_json::json;

use crate::turns::fresh_run_id;

/// hapax, or the raw engine that it is compared with.
#[async_trait]
pub(super) trait EventPublisher: Send + Sync + 'static {
    /// Publishes events that are new.
    async fn publish(&self, task: usize, events: &[BenchEvent]) -> Result<(), BenchError>;

    /// How many events one commit contains when this many tasks publish.
    fn batch(&self, _tasks: usize) -> usize {
        1
    }
}

/// A bus on which the last event of a job closes it.
pub(super) fn bus(store: Arc<dyn Store>) -> Bus {
    Bus::with_config(store, BusConfig::default().closing_event(ClosingEvent::new("done", 51)))
}

#[async_trait]
impl EventPublisher for Bus {
    async fn publish(&self, _task: usize, events: &[BenchEvent]) -> Result<(), BenchError> {
        for event in events {
            match Self::publish(self, &event.for_hapax()).await {
                Ok(Appended::Published(_)) => {}
                Ok(_) => return Err(BenchError::Unexpected("a new event was published before")),
                Err(error) => return Err(BenchError::Engine(error.to_string())),
            }
        }
        Ok(())
    }
}

/// Publishes events that no other run has.
pub(super) struct PublishOperation {
    publisher: Arc<dyn EventPublisher>,
    run_id: String,
    batch: usize,
}

impl PublishOperation {
    pub(super) fn new(publisher: &Arc<dyn EventPublisher>, tasks: usize) -> Self {
        let (publisher, batch) = (publisher.clone(), publisher.batch(tasks));
        Self { publisher, run_id: fresh_run_id(), batch }
    }

    /// The event of a task's nth turn: one job after the other.
    fn event(&self, task: usize, turn: u64) -> BenchEvent {
        let (job, nth) = (turn / EVENTS, turn % EVENTS);
        let stage = STAGES[(nth / EACH) as usize];
        let seq = 10 * (nth / EACH + 1) + nth % EACH;
        BenchEvent { job: format!("{}-{task}-{job}", self.run_id), stage, seq }
    }
}

#[async_trait]
impl BenchOperation for PublishOperation {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let tasks = task * self.batch..(task + 1) * self.batch;
        let events: Vec<_> = tasks.map(|task| self.event(task, turn)).collect();
        self.publisher.publish(task, &events).await
    }

    fn batch(&self) -> u32 {
        self.batch as u32
    }
}

const DOMAIN: &str = "scan";
const STAGES: [&str; 5] = ["vision", "rule", "answer", "reward", "done"];
/// Each stage has two events: begun and ended.
const EACH: u64 = 2;
const EVENTS: u64 = EACH * STAGES.len() as u64;
/// Padding that makes the event about 200 bytes long.
const NOTE: &str = "one of two photos was looked at, three labels found";

/// One event of a job that no other run has. The last one, `done` at 51, closes it.
pub(super) struct BenchEvent {
    pub(super) job: String,
    pub(super) stage: &'static str,
    pub(super) seq: u64,
}

impl BenchEvent {
    /// The event as hapax takes it.
    pub(super) fn for_hapax(&self) -> NewEvent {
        NewEvent::new(DOMAIN, &*self.job, self.stage, self.seq)
            .data(json!({"status": "running", "note": NOTE}))
    }

    /// The event as the worker of the usual design writes it.
    pub(super) fn for_raw(&self) -> String {
        json!({
            "job_id": self.job,
            "domain": DOMAIN,
            "stage": self.stage,
            "seq": self.seq,
            "data": {"status": "running", "note": NOTE},
            "timestamp": "2026-01-01T00:00:00.000000",
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::memory::MemoryStore;
    use hapax_workload::{BenchPlan, BenchSpan, measure};

    use super::*;

    fn memory_bus() -> Arc<dyn EventPublisher> {
        Arc::new(bus(Arc::new(MemoryStore::default())))
    }

    #[tokio::test]
    async fn publish_operation_repeats_no_event() {
        let bus = memory_bus();
        for _ in 0..2 {
            let plan = BenchPlan::new(7, BenchSpan::Count(300));
            let measured = measure(Arc::new(PublishOperation::new(&bus, 7)), &plan).await.unwrap();
            assert_eq!(measured.operations, 300);
        }
    }

    #[test]
    fn publish_operation_ends_a_job_with_done_at_51() {
        let operation = PublishOperation::new(&memory_bus(), 7);
        let last = operation.event(3, EVENTS - 1);
        assert_eq!((last.stage, last.seq), ("done", 51));
        let next = operation.event(3, EVENTS);
        assert_eq!((next.stage, next.seq), ("vision", 10));
        assert_ne!(last.job, next.job);
    }
}
