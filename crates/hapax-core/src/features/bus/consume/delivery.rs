use std::error::Error;
use std::future::Future;

use async_trait::async_trait;
use bytes::Bytes;

use crate::log::LogEntry;
use crate::{Expect, Fence, Fingerprint, Key, Version};

/// Why an event was not handled.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// What is done with events. Closures from [`EventDelivery`] to a future are handlers.
#[async_trait]
pub trait EventHandler: Send + Sync + 'static {
    /// Handles one event. Where it fails the event comes again, and holds back only its partition.
    async fn handle(&self, delivery: EventDelivery) -> Result<EventOutcome, HandlerError>;

    /// Events of a partition were forgotten before this group read them.
    async fn lost(&self, _partition: u16) {}
}

#[async_trait]
impl<F, Fut, E> EventHandler for F
where
    F: Fn(EventDelivery) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<EventOutcome, E>> + Send,
    E: Into<HandlerError>,
{
    async fn handle(&self, delivery: EventDelivery) -> Result<EventOutcome, HandlerError> {
        self(delivery).await.map_err(Into::into)
    }
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// It had its effect; the group's progress is saved after it, so that a crash in between makes it
    /// come again.
    Done,
    /// It had its effect, and [`EventDelivery::progress`] was put in the same transaction, as this version.
    Saved(Version),
    /// Putting the progress was a conflict: another member has this partition by now, and the
    /// transaction was rolled back.
    Superseded,
}

/// An event on its way to a handler.
#[derive(Clone, Debug)]
pub struct EventDelivery {
    /// Whose event it is: tenant, domain and job.
    pub job: Key,
    /// The event; its payload is the JSON that readers of a stream get, but for the offset.
    pub entry: LogEntry,
    /// The partition of the job.
    pub partition: u16,
    /// Grows with every member that takes the partition; pass it on to what you write to.
    pub fence: Fence,
    /// 1 for the first, one more each time that this member's handler failed.
    pub attempt: u32,
    /// How far the group is with this partition once the event is handled.
    pub progress: ConsumerProgress,
}

impl EventDelivery {
    /// The event's identity (job, stage, seq) as one text of fixed length: the message id for an
    /// [inbox](crate::inbox).
    pub fn id(&self) -> String {
        let (job, seq) = (self.job.canonical(), self.entry.seq.to_string());
        let parts = [job.as_bytes(), self.entry.stage.as_bytes(), seq.as_bytes()];
        Fingerprint::of(&parts).as_str().to_owned()
    }
}

/// A record to put inside the handler's own transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerProgress {
    /// Under this key,
    pub key: Key,
    /// this value, without expiry,
    pub value: Bytes,
    /// where this is expected.
    pub expect: Expect,
}
