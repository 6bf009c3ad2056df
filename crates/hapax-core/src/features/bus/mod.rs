//! The event bus: events of jobs, each once and in order, from workers to the followers of a job.
//!
//! ```
//! use std::sync::Arc;
//! use hapax_core::{bus::{Bus, BusError, NewEvent}, log::Appended, memory::MemoryStore};
//! use serde_json::json;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), BusError> {
//! let bus = Bus::new(Arc::new(MemoryStore::default()));
//!
//! let started = NewEvent::new("scan", "job-1", "vision", 10).data(json!({"status": "started"}));
//! let first = bus.publish(&started).await?;
//! assert!(matches!(first, Appended::Published(at) if at.offset == 1));
//! // A retry is recognised; the same identity with another content is refused.
//! assert!(matches!(bus.publish(&started).await?, Appended::Duplicate(at) if at.offset == 1));
//! assert_eq!(bus.publish(&started.data(json!("other"))).await?, Appended::Conflict);
//!
//! let job = bus.state("scan", "job-1").await?.unwrap();
//! assert_eq!((job.state.unwrap().seq, job.closed), (10, false));
//! # Ok(()) }
//! ```

pub mod consume;
mod event;
mod feed;
mod follow;
mod frame;
mod multi_follow;
mod registry;
mod replay;
mod ring;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use metrics::counter;

pub use event::{ClosingEvent, InvalidEvent, NewEvent, RESERVED_STAGES};
pub use follow::{FollowFrom, Follower, JobUpdates, NextFrames, ReadyFrames};
pub use frame::{EncodedFrame, FrameContent, FrameKind, JobFrame, JsonFrame, with_offset};
pub use multi_follow::{MAX_JOBS, MultiCursor, MultiFollower, MultiFrame};

use registry::FollowRegistry;

use crate::activity::{self, Activity};
use crate::claim_retry::retry_once_on_disconnect;
use crate::log::{Appended, JobHead, LogEvent, LogRetention, MAX_APPEND, PageRequest};
use crate::{
    Clock, InvalidKey, Key, Store, StoreError, StoreResult, SystemClock, Tenant, metric_names,
};

/// How many bytes of payload go to the store in one call.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Why nothing was published or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// An event cannot be published; neither it nor the events beside it were.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
    /// The store failed. Some of the events may have been published; publishing them again is safe.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl BusError {
    /// Whether the same call may succeed later; published events are recognised.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_retryable())
    }
}

impl From<InvalidKey> for BusError {
    fn from(error: InvalidKey) -> Self {
        Self::Invalid(error.into())
    }
}

/// How a bus works: two hours and ten thousand entries of each job, events of up to 1 MiB, a poll
/// every half second, and no closing event by default.
#[derive(Clone, Debug)]
pub struct BusConfig {
    retention: LogRetention,
    closing_event: Option<ClosingEvent>,
    max_event_bytes: usize,
    poll_interval: Duration,
}

impl Default for BusConfig {
    fn default() -> Self {
        Self {
            retention: LogRetention::default(),
            closing_event: None,
            max_event_bytes: 1 << 20,
            poll_interval: Duration::from_millis(500),
        }
    }
}

impl BusConfig {
    crate::builder_methods! {
        /// How long and how much of each job is kept.
        retention: LogRetention;
        /// The largest encoded event.
        max_event_bytes: usize;
        /// How often the tail is polled for appends whose hint was lost.
        poll_interval: Duration;
    }

    /// An event that closes its job even if it is not marked as the last one.
    #[must_use]
    pub fn closing_event(mut self, event: impl Into<Option<ClosingEvent>>) -> Self {
        self.closing_event = event.into();
        self
    }
}

/// Publishes events of one tenant, and follows its jobs. Clones share everything.
///
/// `F` is the encoding of the frames that followers get.
pub struct Bus<F = JsonFrame> {
    shared: Arc<BusShared<F>>,
    tenant: Tenant,
}

struct BusShared<F> {
    store: Arc<dyn Store>,
    config: BusConfig,
    registry: Arc<FollowRegistry<F>>,
}

impl Bus {
    /// The bus of the default tenant on this store; followers get JSON.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with_config(store, BusConfig::default())
    }

    /// As [`Bus::new`], with this configuration.
    pub fn with_config(store: Arc<dyn Store>, config: BusConfig) -> Self {
        Self::with_frames(store, config)
    }
}

impl<F: EncodedFrame> Bus<F> {
    /// A bus whose followers get frames in the encoding `F`.
    pub fn with_frames(store: Arc<dyn Store>, config: BusConfig) -> Self {
        let registry = FollowRegistry::new(store.clone(), config.poll_interval);
        let shared = Arc::new(BusShared { store, config, registry });
        Self { shared, tenant: Tenant::default() }
    }

    /// The bus of another tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Publishes one event; returns when the store has made it durable.
    pub async fn publish(&self, event: &NewEvent) -> Result<Appended, BusError> {
        let answers = self.publish_all(std::slice::from_ref(event)).await?;
        Ok(answers[0])
    }

    /// Whether the event is valid, without publishing it.
    pub fn check(&self, event: &NewEvent) -> Result<(), BusError> {
        event.sealed(&self.tenant, &self.shared.config, &now()).map(drop).map_err(Into::into)
    }

    /// Publishes events in this order; one answer each. Where one of them is invalid, none is stored.
    pub async fn publish_all(&self, events: &[NewEvent]) -> Result<Vec<Appended>, BusError> {
        let now = now();
        let seal = |event: &NewEvent| event.sealed(&self.tenant, &self.shared.config, &now);
        let events = events.iter().map(seal).collect::<Result<Vec<_>, _>>()?;
        let mut answers = Vec::with_capacity(events.len());
        for batch in batches(&events) {
            answers.extend(self.append(batch).await?);
        }
        Ok(answers)
    }

    async fn append(&self, events: &[LogEvent]) -> StoreResult<Vec<Appended>> {
        let (store, retention) = (&self.shared.store, &self.shared.config.retention);
        let count = |result: &'static str, n: u64| {
            counter!(metric_names::BUS_PUBLISH, "result" => result).increment(n);
        };
        // Appending is idempotent, so a call whose answer was lost may be repeated.
        match retry_once_on_disconnect(|| store.append(events, retention)).await {
            Ok(answers) => {
                answers.iter().for_each(|answer| count(label(answer), 1));
                activity::record(Activity::Published { events, answers: &answers });
                Ok(answers)
            }
            Err(error) => {
                count("error", events.len() as u64);
                metric_names::count_store_error(&error);
                Err(error)
            }
        }
    }

    /// The head of a job with its state; `None` where it has no events, or none any more.
    pub async fn state(&self, domain: &str, job_id: &str) -> Result<Option<JobHead>, BusError> {
        let job = Key::job(&self.tenant, domain, job_id)?;
        let attached = self.shared.store.attach(&job, &PageRequest::state_only()).await;
        Ok(attached.inspect_err(metric_names::count_store_error)?.map(|attached| attached.head))
    }

    /// How many followers a job has in this process.
    pub fn followers(&self, job: &Key) -> usize {
        self.shared.registry.followers(job)
    }

    /// How long ago the tail of the followed jobs was read to its end; zero while none is followed.
    /// While the tail is not read, followers rely on hints alone.
    pub fn tail_age(&self) -> Duration {
        self.shared.registry.tail_age()
    }

    /// Ends every [`Follower`], of all tenants, with [`NextFrames::Stopped`].
    pub fn stop(&self) {
        self.shared.registry.stop();
    }
}

impl<F> Clone for Bus<F> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), tenant: self.tenant.clone() }
    }
}

impl<F> fmt::Debug for Bus<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

fn label(answer: &Appended) -> &'static str {
    match answer {
        Appended::Published(_) => "published",
        Appended::Duplicate(_) => "duplicate",
        Appended::Conflict => "conflict",
        Appended::Closed => "closed",
    }
}

/// Splits the events into calls that a store accepts.
fn batches(events: &[LogEvent]) -> impl Iterator<Item = &[LogEvent]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |event: &&LogEvent| {
            bytes += event.payload.len();
            bytes <= MAX_BATCH_BYTES
        };
        let count = rest.iter().take(MAX_APPEND).take_while(fits).count().max(1);
        let (batch, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(batch)
    })
}

fn now() -> String {
    let now = UNIX_EPOCH + Duration::from_millis(SystemClock.now().0);
    humantime::format_rfc3339_millis(now).to_string()
}
