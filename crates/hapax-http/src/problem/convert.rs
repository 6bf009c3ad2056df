//! Errors of hapax's features as problems, and problems as responses of axum.

use std::time::Duration;

use hapax_core::bus::{BusError, InvalidEvent};
use hapax_core::command::CommandError;
use hapax_core::document::DocumentError;
use hapax_core::inbox::InboxError;
use hapax_core::lock::LockError;
use hapax_core::{InvalidKey, StoreError};

use super::{Problem, ProblemKind};

#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for Problem {
    fn into_response(self) -> axum_core::response::Response {
        self.response().map(axum_core::body::Body::new)
    }
}

/// A store's error in words that may reach a client: the driver's own text may hold addresses and
/// stored values, and belongs into the log.
pub fn describe_store_error(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable { .. } => "the store cannot be reached",
        StoreError::Timeout { .. } => "the store did not answer in time",
        StoreError::Full { .. } => "the store has no room left",
        StoreError::ReadOnly { .. } => "the store takes no writes now",
        StoreError::Locked { .. } => "the store is locked by another process",
        StoreError::Refused { .. } => "the store refused the server's credentials",
        StoreError::Incompatible { .. } => "the store cannot be used by this version",
        StoreError::Corrupt { .. } => "a stored value cannot be read",
        _ => "the store failed",
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::warn!(reason = error.label(), "a store call failed: {error}");
        let detail = describe_store_error(&error);
        match error {
            StoreError::Corrupt { .. } => Self::new(ProblemKind::Internal, detail),
            _ => {
                Self::new(ProblemKind::StoreUnavailable, detail).retry_after(Duration::from_secs(1))
            }
        }
    }
}

impl From<InvalidKey> for Problem {
    fn from(error: InvalidKey) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<LockError> for Problem {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held { retry_after } => {
                Self::new(ProblemKind::LockHeld, "the lock is held; ask again when it may be free")
                    .retry_after(retry_after)
            }
            LockError::Lost => Self::new(
                ProblemKind::LockLost,
                "it ran out, was released, or the token is not its owner's",
            ),
            LockError::Invalid(error) => error.into(),
            LockError::Store(error) => error.into(),
            _ => Self::new(ProblemKind::Internal, "the lock failed"),
        }
    }
}

impl From<DocumentError> for Problem {
    fn from(error: DocumentError) -> Self {
        match error {
            DocumentError::Missing => {
                Self::new(ProblemKind::RecordMissing, "nothing is stored under this key")
            }
            DocumentError::Conflict => Self::new(
                ProblemKind::VersionMismatch,
                "what is stored is not what the precondition expects; nothing was changed",
            ),
            DocumentError::Contended => {
                Self::new(ProblemKind::RecordContended, "nothing was changed")
                    .retry_after(Duration::from_secs(1))
            }
            DocumentError::Corrupt(_) => {
                Self::new(ProblemKind::RecordCorrupt, "what is stored under this key is not JSON")
            }
            DocumentError::TooLarge { .. } => {
                Self::new(ProblemKind::PayloadTooLarge, error.to_string())
            }
            DocumentError::Invalid(error) => error.into(),
            DocumentError::Store(error) => error.into(),
            _ => Self::new(ProblemKind::Internal, "the record failed"),
        }
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Lost => Self::new(
                ProblemKind::ClaimLost,
                "it was taken over, completed with another answer, failed or forgotten, or the \
                 token is not its owner's",
            ),
            CommandError::Invalid(error) => error.into(),
            CommandError::Unstorable => Self::invalid(format!("`headers`: {error}")),
            CommandError::Malformed(_) => {
                Self::new(ProblemKind::Internal, "the stored answer cannot be read")
            }
            CommandError::Store(error) => error.into(),
            _ => Self::new(ProblemKind::Internal, "the command failed"),
        }
    }
}

impl From<InboxError> for Problem {
    fn from(error: InboxError) -> Self {
        match error {
            InboxError::Lost => Self::new(
                ProblemKind::ClaimLost,
                "it was taken over, settled, given back or forgotten, or the token is not its \
                 owner's",
            ),
            InboxError::Invalid(error) => error.into(),
            InboxError::Store(error) => error.into(),
            _ => Self::new(ProblemKind::Internal, "the inbox failed"),
        }
    }
}

impl From<BusError> for Problem {
    fn from(error: BusError) -> Self {
        match error {
            BusError::Invalid(error @ InvalidEvent::TooLarge { .. }) => {
                Self::new(ProblemKind::PayloadTooLarge, error.to_string())
            }
            BusError::Invalid(error) => Self::invalid(error.to_string()),
            BusError::Store(error) => error.into(),
            _ => Self::new(ProblemKind::Internal, "the bus failed"),
        }
    }
}
