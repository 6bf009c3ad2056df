use std::error::Error;
use std::future::Future;

use async_trait::async_trait;
use bytes::Bytes;

use crate::log::LogEntry;
use crate::{Expect, Fence, Fingerprint, Key, Version};

/// Why an event was not handled.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// Handles the events of a group. Closures from [`EventDelivery`] to a future are handlers.
#[async_trait]
pub trait EventHandler: Send + Sync + 'static {
    /// Handles one event. After an error the event is delivered again, and holds up only its
    /// partition.
    async fn handle(&self, delivery: EventDelivery) -> Result<EventOutcome, HandlerError>;

    /// Called when events of a partition were forgotten before this group read them, and before the first event
    /// of a job after a failover that may have lost some. A job that gets no further event is not reported.
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

/// The result of handling an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventOutcome {
    /// Handled. The group's progress is saved afterwards, so a crash in between delivers the event
    /// again.
    Done,
    /// Handled, and [`EventDelivery::progress`] was put in the same transaction, as this version.
    Saved(Version),
    /// Putting the progress was a conflict: another member owns this partition by now, and the
    /// transaction was rolled back.
    Superseded,
}

/// An event and its context, as given to a handler.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EventDelivery {
    /// The job: tenant, domain and job id.
    pub job: Key,
    /// The event; its payload is the JSON that readers of a stream get, without the offset.
    pub entry: LogEntry,
    /// The partition of the job.
    pub partition: u16,
    /// Grows with every member that takes the partition; pass it on to what the handler writes to.
    pub fence: Fence,
    /// 1 for the first call, one more after each failure of this member's handler.
    pub attempt: u32,
    /// The group's progress in this partition once the event is handled.
    pub progress: ConsumerProgress,
}

impl EventDelivery {
    /// The event's identity (job, stage, seq) as one text of fixed length: the message id for an
    /// inbox.
    pub fn id(&self) -> String {
        let (job, seq) = (self.job.canonical(), self.entry.seq.to_string());
        let parts = [job.as_bytes(), self.entry.stage.as_bytes(), seq.as_bytes()];
        Fingerprint::of(&parts).as_str().to_owned()
    }
}

/// A record to put, without expiry, inside the handler's own transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerProgress {
    /// The record's key.
    pub key: Key,
    /// The value to put.
    pub value: Bytes,
    /// The precondition of the put.
    pub expect: Expect,
}
