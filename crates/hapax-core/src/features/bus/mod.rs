//! The event bus: events of jobs, each once and in order, from workers to whoever follows a job.
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
//! assert_eq!((job.state.seq, job.closed), (10, false));
//! # Ok(()) }
//! ```

pub mod consume;
mod event;
mod feed;
mod follow;
mod frame;
mod many;
mod registry;
mod ring;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use metrics::counter;

pub use event::{ClosingEvent, InvalidEvent, NewEvent, RESERVED_STAGES};
pub use follow::{FollowFrom, Follower, JobUpdates, NextFrames, ReadyFrames};
pub use frame::{Frame, FrameKind, with_offset};
pub use many::{MAX_JOBS, MultiCursor, MultiFollower, MultiFrame};

use registry::Registry;

use crate::log::{Appended, JobHead, LogEvent, LogRetention, MAX_APPEND, MAX_NUMBER};
use crate::{
    Clock, InvalidKey, Key, Store, StoreError, SystemClock, Tenant, claim_retry, metric_names,
};

/// How many bytes of payload go to the store in one call.
const MAX_BATCH: usize = 4 << 20;

/// Why nothing was published or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// An event cannot be published; none of those with it was.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
    /// The store gave no answer. Some of the events may have been published: publish them again, and
    /// those are recognised.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<InvalidKey> for BusError {
    fn from(error: InvalidKey) -> Self {
        Self::Invalid(error.into())
    }
}

/// How a bus works.
#[derive(Clone, Debug)]
pub struct BusConfig {
    /// How long and how much of each job is kept.
    pub keep: LogRetention,
    /// The event that closes a job also where it does not say so; `None` for none.
    pub finale: Option<ClosingEvent>,
    /// How large an event may be, encoded.
    pub largest: usize,
    /// How often the tail is asked for what a lost hint did not tell.
    pub poll: Duration,
}

impl Default for BusConfig {
    /// Two hours and ten thousand entries, `done` at 51, 1 MiB, half a second.
    fn default() -> Self {
        Self {
            keep: LogRetention::default(),
            finale: Some(ClosingEvent::default()),
            largest: 1 << 20,
            poll: Duration::from_millis(500),
        }
    }
}

/// Publishes events of one tenant, and follows its jobs. Clones share everything.
#[derive(Clone)]
pub struct Bus {
    shared: Arc<Shared>,
    tenant: Tenant,
}

struct Shared {
    store: Arc<dyn Store>,
    settings: BusConfig,
    registry: Arc<Registry>,
}

impl Bus {
    /// The bus of the default tenant on this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::with(store, BusConfig::default())
    }

    /// The same with other settings.
    pub fn with(store: Arc<dyn Store>, settings: BusConfig) -> Self {
        let registry = Registry::new(store.clone(), settings.poll);
        let shared = Arc::new(Shared { store, settings, registry });
        Self { shared, tenant: Tenant::default() }
    }

    /// The bus of another tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// The store that it is on.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// How it works.
    pub fn settings(&self) -> &BusConfig {
        &self.shared.settings
    }

    /// Publishes one event; answered when the store has it for good.
    pub async fn publish(&self, event: &NewEvent) -> Result<Appended, BusError> {
        let answers = self.publish_all(std::slice::from_ref(event)).await?;
        Ok(answers[0])
    }

    /// Publishes events, in this order; one answer each. One that is invalid fails them all, and
    /// nothing is stored.
    pub async fn publish_all(&self, events: &[NewEvent]) -> Result<Vec<Appended>, BusError> {
        let now = now();
        let seal = |event: &NewEvent| event.sealed(&self.tenant, self.settings(), &now);
        let events = events.iter().map(seal).collect::<Result<Vec<_>, _>>()?;
        let mut answers = Vec::with_capacity(events.len());
        for batch in batches(&events) {
            answers.extend(self.append(batch).await?);
        }
        Ok(answers)
    }

    /// Idempotent, so that a call whose answer was lost is simply made again.
    async fn append(&self, events: &[LogEvent]) -> Result<Vec<Appended>, StoreError> {
        let (store, keep) = (&self.shared.store, &self.shared.settings.keep);
        let count = |result: &'static str, n: u64| {
            counter!(metric_names::BUS_PUBLISH, "result" => result).increment(n);
        };
        match claim_retry::retry_once_on_disconnect(|| store.append(events, keep)).await {
            Ok(answers) => {
                answers.iter().for_each(|answer| count(word(answer), 1));
                Ok(answers)
            }
            Err(error) => {
                count("error", events.len() as u64);
                metric_names::count_store_error(&error);
                Err(error)
            }
        }
    }

    /// How a job stands; `None` where it has no events, or none any more.
    pub async fn state(&self, domain: &str, job_id: &str) -> Result<Option<JobHead>, BusError> {
        let job = Key::job(&self.tenant, domain, job_id)?;
        // Past every entry: only the head is wanted.
        let attached = self.shared.store.attach(&job, MAX_NUMBER, 1).await;
        Ok(attached.inspect_err(metric_names::count_store_error)?.map(|attached| attached.head))
    }
}

impl Bus {
    /// How long ago the tail of the jobs that are followed was read to its end; zero while none is.
    /// A tail that stands still means that followers rely on hints alone.
    pub fn tail_age(&self) -> Duration {
        self.shared.registry.tail_age()
    }

    /// Ends every [`Follower`], of all tenants, with [`NextFrames::Stopped`].
    pub fn stop(&self) {
        self.shared.registry.stop();
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

fn word(answer: &Appended) -> &'static str {
    match answer {
        Appended::Published(_) => "published",
        Appended::Duplicate(_) => "duplicate",
        Appended::Conflict => "conflict",
        Appended::Closed => "closed",
    }
}

/// As many events at once as a store takes.
fn batches(events: &[LogEvent]) -> impl Iterator<Item = &[LogEvent]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |event: &&LogEvent| {
            bytes += event.payload.len();
            bytes <= MAX_BATCH
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
