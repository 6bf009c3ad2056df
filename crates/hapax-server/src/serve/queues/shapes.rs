//! What queues look like on the wire.

use std::time::{Duration, UNIX_EPOCH};

use hapax::millis;
use hapax::queue::{Dead, Depth};
use serde::Serialize;
use utoipa::ToSchema;

/// How much is in a queue.
#[derive(Serialize, ToSchema)]
pub(crate) struct QueueDepth {
    /// Waiting: due, not due yet, or behind another one of its key.
    depth: u64,
    /// Handed out, and not done yet.
    in_flight: u64,
    /// Dead letters, which wait for an operator.
    dead: u64,
    /// How long ago the oldest one that waits or is in flight was enqueued; null where none is.
    #[schema(required)]
    oldest_age_ms: Option<u64>,
}

impl QueueDepth {
    pub(super) fn new(depth: Depth) -> Self {
        let Depth { waiting, in_flight, dead, oldest_age } = depth;
        Self { depth: waiting, in_flight, dead, oldest_age_ms: oldest_age.map(millis) }
    }
}

/// Some dead letters, and where to go on.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadLetters {
    /// The dead letters.
    pub(super) items: Vec<DeadLetter>,
    /// What to pass as `after`; null at the end.
    #[schema(required)]
    pub(super) next: Option<String>,
}

/// One dead letter.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadLetter {
    /// Which item.
    id: String,
    /// Its ordering key, where it has one.
    #[schema(required)]
    key: Option<String>,
    /// How many times it was tried.
    attempts: u32,
    /// Why it was given up.
    reason: String,
    /// When (RFC 3339).
    at: String,
}

impl DeadLetter {
    pub(super) fn new(dead: &Dead) -> Self {
        let at = UNIX_EPOCH + Duration::from_millis(dead.at.0);
        Self {
            id: dead.id.to_string(),
            key: dead.key.as_deref().map(str::to_owned),
            attempts: dead.attempts,
            reason: dead.reason.to_string(),
            at: humantime::format_rfc3339_millis(at).to_string(),
        }
    }
}
