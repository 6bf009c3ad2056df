use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

type Source = Arc<dyn StdError + Send + Sync>;

/// The result of a store call.
pub type StoreResult<T> = Result<T, StoreError>;

/// Why a store call failed. Messages never contain a key or a value. Each caller of a batch that
/// failed as a whole gets a clone.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store is unreachable, or closed the connection. A write may or may not have happened.
    #[error("the store cannot be reached: {reason}")]
    Unavailable {
        /// The driver's message, without anything personal.
        reason: String,
        /// The driver's own error.
        #[source]
        source: Option<Source>,
    },
    /// The store did not answer in time. A write may or may not have happened.
    #[error("the store did not answer within {} ms", timeout.as_millis())]
    Timeout {
        /// The longest that one store call may take.
        timeout: Duration,
    },
    /// The store has no space left (disk, memory or quota). Nothing was written.
    #[error("the store is full: {reason}")]
    Full {
        /// The driver's message.
        reason: String,
    },
    /// The store accepts no writes: a replica, a read-only file or file system. Nothing was written.
    #[error("the store is read-only: {reason}")]
    ReadOnly {
        /// The driver's message.
        reason: String,
    },
    /// The store's files or tables were removed or replaced while in use. Nothing is written from then
    /// on, until a restart; the write that met it may or may not be lost.
    #[error(
        "{reason} while the store was in use; restore the files and restart, or restart without them"
    )]
    Replaced {
        /// The file or table that was removed or replaced.
        reason: String,
    },
    /// Another process holds the store locked for longer than the timeout. Nothing was written.
    #[error("the store is locked by another process: {reason}")]
    Locked {
        /// The driver's message.
        reason: String,
    },
    /// The store refused the user: the credentials are wrong, or a right is missing.
    #[error("the store refused this user: {reason}")]
    Refused {
        /// The driver's message.
        reason: String,
    },
    /// The store was written by a newer hapax, or cannot be used by hapax.
    #[error("this store cannot be used: {reason}")]
    Incompatible {
        /// The obstacle, and how to go on.
        reason: String,
    },
    /// The stored value was not written by hapax, or is damaged.
    #[error("a stored value cannot be read: {reason}")]
    Corrupt {
        /// The damage.
        reason: String,
    },
    /// Any other failure: a bug in hapax or in the store.
    #[error("the store failed: {reason}")]
    Internal {
        /// The driver's message.
        reason: String,
        /// The driver's own error.
        #[source]
        source: Option<Source>,
    },
}

impl StoreError {
    /// [`StoreError::Unavailable`] from a driver's error.
    pub fn unavailable(source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Unavailable { reason: source.to_string(), source: Some(Arc::new(source)) }
    }

    /// [`StoreError::Internal`] from a driver's error.
    pub fn internal(source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Internal { reason: source.to_string(), source: Some(Arc::new(source)) }
    }

    /// Whether the same call may succeed later, without a change of configuration.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. }
                | Self::Timeout { .. }
                | Self::Full { .. }
                | Self::ReadOnly { .. }
                | Self::Locked { .. }
        )
    }

    /// Whether the same call may be made again. As [`StoreError::is_transient`]: steps of claims, appends,
    /// leases and writes with an expected version recognise themselves or are refused. A put or delete
    /// without an expected version, and an enqueue of an item that is forgotten once it is done, may
    /// undo what somebody else did since the first call.
    pub fn is_retryable(&self) -> bool {
        self.is_transient()
    }

    /// Whether a starting process should end with this error rather than wait.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Incompatible { .. })
    }

    /// A short stable word for metric labels.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Timeout { .. } => "timeout",
            Self::Full { .. } => "full",
            Self::ReadOnly { .. } => "read_only",
            Self::Replaced { .. } => "replaced",
            Self::Locked { .. } => "locked",
            Self::Refused { .. } => "refused",
            Self::Incompatible { .. } => "incompatible",
            Self::Corrupt { .. } => "corrupt",
            Self::Internal { .. } => "internal",
        }
    }
}
