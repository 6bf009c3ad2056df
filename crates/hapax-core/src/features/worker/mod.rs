//! The parts of a worker that drains a [`Queue`](crate::Queue): lease rows, keep the lease alive, write outcomes.
//!
//! ```text
//!   QueueLeaser::lease ──► LeasedBatch { rows, lease }
//!                                 │
//!                                 ▼
//!   OutcomeWriter::run_while_renewing(work) ── work sends (id, outcome) ──► Queue::resolve
//!                                 └── every third of the lease ───────────► Queue::renew
//! ```
//!
//! [`CircuitBreaker`] tells a failure of the item from one of its target, and stops the worker while the
//! target takes nothing.
//!
//! The relay and the LINE gateway are built on these. Which rows run at the same time, and when the
//! next lease is asked for, is theirs to decide.
//!
//! ```
//! use hapax_core::{memory::MemoryStore, queue::*, worker::*, Tenant};
//! use std::{sync::Arc, time::Duration};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(MemoryStore::default());
//! let queue = QueueName::new("mail")?;
//! store.enqueue(&queue, &[QueueItem::new(&Tenant::default(), "welcome", "hello")]).await?;
//!
//! let mut leaser = QueueLeaser::new(store.clone(), queue.clone(), Duration::from_secs(30));
//! let LeasedBatch { rows, lease, .. } = leaser.lease(10).await?;
//! let (outcomes, writer) = OutcomeWriter::new(&lease, rows.len());
//! let work = async move {
//!     for row in rows {
//!         outcomes.send(row.item.id, ItemOutcome::Ack { retention: Duration::ZERO }, ());
//!     }
//! };
//! writer.run_while_renewing(work).await;
//! assert_eq!(store.depth(&queue, None).await?.in_flight, 0);
//! # Ok(()) }
//! ```

mod backoff;
mod circuit_breaker;
mod lease;
mod outcome_writer;
mod pause;

pub use backoff::Backoff;
pub use circuit_breaker::{BegunSend, Blame, CircuitBreaker, DoubtfulFailure, TargetHealth};
pub use lease::{BatchLease, LeaseDeadline, LeasedBatch, QueueLeaser};
pub use outcome_writer::{OutcomeSender, OutcomeWriter, WriteReport};
pub use pause::{PausedQueue, QueuePause, pause, paused, resume};
