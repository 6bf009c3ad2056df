//! Effects of events: `bus.consume("group", handler)`.
//!
//! The members of a group, in any number of processes, share the partitions of the store. Each
//! partition has one member at a time, by a lease with a fence; events of one job are handled in
//! their order, one after the other.
//!
//! What is promised is **at least once**. It becomes once where the handler
//! - asks the [inbox](crate::inbox) with [`EventDelivery::id`], or
//! - writes its effect and [`EventDelivery::progress`] in one SQL transaction (`record` put of the store's
//!   crate), and answers [`EventOutcome::Saved`].

mod delivery;
mod lease;
mod member;
mod page;
mod roster;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use delivery::{ConsumerProgress, EventDelivery, EventHandler, EventOutcome, HandlerError};

use super::Bus;
use crate::{InvalidKey, Key};
use member::Member;

/// How a group consumes.
#[derive(Clone, Debug)]
pub struct ConsumerGroupConfig {
    /// How long a member is believed alive without a sign; then others take its partitions.
    pub lease: Duration,
    /// How often partitions in which nothing happened are looked at.
    pub poll: Duration,
    /// How many partitions of one member are handled at once.
    pub at_once: usize,
    /// How long an event waits after its handler failed: at first, and at most.
    pub backoff: (Duration, Duration),
    /// Whether a new group begins with what is still kept, or with what comes from now on.
    pub from_start: bool,
}

impl Default for ConsumerGroupConfig {
    /// 15 s of lease, a look every half second, 16 at once, waits of 0.5 s to 60 s, from the start.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            poll: Duration::from_millis(500),
            at_once: 16,
            backoff: (Duration::from_millis(500), Duration::from_secs(60)),
            from_start: true,
        }
    }
}

impl Bus {
    /// Handles every event of this bus's tenant as a member of a group.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use hapax_core::{bus::{Bus, NewEvent, consume::{EventDelivery, EventOutcome}}, memory::MemoryStore};
    /// use tokio::sync::mpsc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus = Bus::new(Arc::new(MemoryStore::default()));
    /// let (heard, mut hears) = mpsc::unbounded_channel();
    /// let member = bus.consume("mailing", move |delivery: EventDelivery| {
    ///     let heard = heard.clone();
    ///     async move {
    ///         heard.send(delivery.entry.stage.to_string())?;
    ///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(EventOutcome::Done)
    ///     }
    /// })?;
    /// bus.publish(&NewEvent::new("scan", "job-1", "vision", 10)).await?;
    /// assert_eq!(hears.recv().await.unwrap(), "vision");
    /// member.stop().await;
    /// # Ok(()) }
    /// ```
    pub fn consume(&self, group: &str, handler: impl EventHandler) -> Result<Consumer, InvalidKey> {
        self.consume_with(group, handler, ConsumerGroupConfig::default())
    }

    /// As [`Bus::consume`], with other settings. Those of all members should be the same.
    pub fn consume_with(
        &self,
        group: &str,
        handler: impl EventHandler,
        consume: ConsumerGroupConfig,
    ) -> Result<Consumer, InvalidKey> {
        // The longest key that the group needs.
        Key::record(&self.tenant, &name(group, "partition:65535"))?;
        let group =
            Group { name: group.into(), bus: self.clone(), handler: Arc::new(handler), consume };
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(Member::new(Arc::new(group)).run(stopped));
        Ok(Consumer { stop, task })
    }
}

/// What the members of a group have in common.
struct Group {
    name: Arc<str>,
    bus: Bus,
    handler: Arc<dyn EventHandler>,
    consume: ConsumerGroupConfig,
}

impl Group {
    fn lock(&self, partition: u16) -> Key {
        let name = name(&self.name, &format!("partition:{partition}"));
        Key::lock(&self.bus.tenant, &name).expect("the group's name was checked")
    }

    fn record(&self, what: &str) -> Key {
        Key::record(&self.bus.tenant, &name(&self.name, what))
            .expect("the group's name was checked")
    }
}

fn name(group: &str, what: &str) -> String {
    format!("hapax:consumer:{group}:{what}")
}

/// A member of a group. Dropped, it is as if its process had died: its partitions are taken over when
/// their leases have run out.
#[must_use = "a member that is dropped handles nothing"]
pub struct Consumer {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Consumer {
    /// Leaves the group: events that are being handled are handled to their end, then others take
    /// over at once. Gives up after the lease.
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
