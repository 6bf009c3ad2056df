//! Whoever publishes, again and again.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_bench::{Failure, Operation};
use hapax_core::bus::Bus;
use hapax_core::log::Appended;

use super::event::{Events, Publish};

/// hapax, or somebody who stands beside it.
#[async_trait]
pub(super) trait Publisher: Send + Sync + 'static {
    /// Publishes an event that nobody has published before.
    async fn publish(&self, task: usize, event: Publish) -> Result<(), Failure>;
}

#[async_trait]
impl Publisher for Bus {
    async fn publish(&self, _task: usize, event: Publish) -> Result<(), Failure> {
        match Self::publish(self, &event.for_hapax()).await {
            Ok(Appended::Published(_)) => Ok(()),
            Ok(_) => Err(Failure::Unexpected("a new event was published before")),
            Err(error) => Err(Failure::Engine(error.to_string())),
        }
    }
}

/// Events that no other run has.
pub(super) struct Publishing {
    publisher: Arc<dyn Publisher>,
    events: Events,
}

impl Publishing {
    pub(super) fn new(publisher: &Arc<dyn Publisher>) -> Self {
        Self { publisher: publisher.clone(), events: Events::fresh() }
    }
}

#[async_trait]
impl Operation for Publishing {
    async fn run(&self, task: usize, turn: u64) -> Result<(), Failure> {
        self.publisher.publish(task, self.events.event(task, turn)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_bench::{Plan, Span, measure};
    use hapax_core::memory::MemoryStore;

    #[tokio::test]
    async fn every_event_is_new_over_jobs_tasks_and_runs() {
        let bus: Arc<dyn Publisher> = Arc::new(Bus::new(Arc::new(MemoryStore::default())));
        for _ in 0..2 {
            let plan = Plan::new(7, Span::Count(300));
            let measured = measure(Arc::new(Publishing::new(&bus)), &plan).await.unwrap();
            assert_eq!(measured.operations, 300);
        }
    }
}
