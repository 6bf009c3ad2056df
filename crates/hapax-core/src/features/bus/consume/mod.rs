//! Consumer groups: `bus.consume("group", handler)`.
//!
//! The members of a group, in any number of processes, share the partitions of the store. A
//! partition belongs to one member at a time, by a lease with a fence. Events of one job are handled
//! in order, one after the other.
//!
//! Delivery is **at least once**. It becomes once where the handler
//! - asks the inbox with [`EventDelivery::id`], or
//! - writes its effect and [`EventDelivery::progress`] in one SQL transaction, and returns
//!   [`EventOutcome::Saved`].

mod delivery;
mod member;
mod membership;
mod page;
mod partition;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use delivery::{ConsumerProgress, EventDelivery, EventHandler, EventOutcome, HandlerError};

use super::{Bus, EncodedFrame};
use crate::{InvalidKey, Key, Store, Tenant};
use member::GroupMember;

/// How a group consumes: by default 15 s of lease, a poll every half second, 16 partitions at once,
/// a backoff of 0.5 s to 60 s, and from the oldest event that is still kept.
#[derive(Clone, Debug)]
pub struct ConsumerGroupConfig {
    lease: Duration,
    poll_interval: Duration,
    max_concurrent: usize,
    backoff: (Duration, Duration),
    from_start: bool,
}

impl Default for ConsumerGroupConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            poll_interval: Duration::from_millis(500),
            max_concurrent: 16,
            backoff: (Duration::from_millis(500), Duration::from_secs(60)),
            from_start: true,
        }
    }
}

impl ConsumerGroupConfig {
    crate::builder_methods! {
        /// How long a member keeps its partitions without renewing; then others take them over.
        lease: Duration;
        /// How often idle partitions are read.
        poll_interval: Duration;
        /// How many partitions of one member are handled at the same time.
        max_concurrent: usize;
        /// Whether a new group begins with the events that are still kept, or with future ones.
        from_start: bool;
    }

    /// The pause after a failed handler call, at first and at most.
    #[must_use]
    pub fn backoff(mut self, first: Duration, max: Duration) -> Self {
        self.backoff = (first, max);
        self
    }
}

impl<F: EncodedFrame> Bus<F> {
    /// Handles every event of this bus's tenant as a member of a group.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use hapax_core::bus::{Bus, NewEvent, consume::{EventDelivery, EventOutcome, HandlerError}};
    /// use hapax_core::memory::MemoryStore;
    /// use tokio::sync::mpsc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = Bus::new(Arc::new(MemoryStore::default()));
    /// let (sender, mut stages) = mpsc::unbounded_channel();
    /// let member = bus.consume("mailing", move |delivery: EventDelivery| {
    ///     let sender = sender.clone();
    ///     async move {
    ///         sender.send(delivery.entry.stage.to_string())?;
    ///         Ok::<_, HandlerError>(EventOutcome::Done)
    ///     }
    /// })?;
    /// bus.publish(&NewEvent::new("scan", "job-1", "vision", 10)).await?;
    /// assert_eq!(stages.recv().await.unwrap(), "vision");
    /// member.stop().await;
    /// # Ok(()) }
    /// ```
    pub fn consume(&self, group: &str, handler: impl EventHandler) -> Result<Consumer, InvalidKey> {
        self.consume_with(group, handler, ConsumerGroupConfig::default())
    }

    /// As [`Bus::consume`], with this configuration, which all members should share.
    pub fn consume_with(
        &self,
        group: &str,
        handler: impl EventHandler,
        config: ConsumerGroupConfig,
    ) -> Result<Consumer, InvalidKey> {
        // Check the longest key that the group needs.
        Key::record(&self.tenant, &name(group, "partition:65535"))?;
        let (store, tenant) = (self.store().clone(), self.tenant.clone());
        let handler = Arc::new(handler);
        let group = Arc::new(Group { name: group.into(), store, tenant, handler, config });
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(GroupMember::new(group).run(stopped));
        Ok(Consumer { stop, task })
    }
}

/// The group as all parts of a member see it.
struct Group {
    name: Arc<str>,
    store: Arc<dyn Store>,
    tenant: Tenant,
    handler: Arc<dyn EventHandler>,
    config: ConsumerGroupConfig,
}

impl Group {
    fn lock(&self, partition: u16) -> Key {
        let name = name(&self.name, &format!("partition:{partition}"));
        Key::lock(&self.tenant, &name).expect("the group's name was checked")
    }

    fn record(&self, what: &str) -> Key {
        Key::record(&self.tenant, &name(&self.name, what)).expect("the group's name was checked")
    }
}

fn name(group: &str, what: &str) -> String {
    format!("hapax:consumer:{group}:{what}")
}

/// A member of a group. Dropping it is like killing its process: its partitions are taken over when
/// their leases have run out.
#[must_use = "a member that is dropped handles nothing"]
pub struct Consumer {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Consumer {
    /// Leaves the group: finishes the events that are being handled, then releases the partitions.
    /// Gives up after the lease.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        // A task that panicked has nothing left to end.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}
