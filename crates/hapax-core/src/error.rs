use std::error::Error as StdError;
use std::time::Duration;

type Source = Box<dyn StdError + Send + Sync>;

/// Why a store gave no answer. Messages name what failed and what to do, never a key or a value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It cannot be reached, or cut the connection. A write may or may not have happened.
    #[error("the store cannot be reached: {reason}")]
    Unavailable {
        /// What the driver said, without anything personal.
        reason: String,
        /// The driver's own error.
        #[source]
        source: Option<Source>,
    },
    /// It did not answer in time. A write may or may not have happened.
    #[error("the store did not answer within {} ms", timeout.as_millis())]
    Timeout {
        /// The longest that one store call may take.
        timeout: Duration,
    },
    /// It has no room left (disk, memory or quota). Nothing was written.
    #[error("the store is full: {reason}")]
    Full {
        /// What the driver said.
        reason: String,
    },
    /// It takes no writes now: a replica, a read-only file or file system. Nothing was written.
    #[error("the store is read-only: {reason}")]
    ReadOnly {
        /// What the driver said.
        reason: String,
    },
    /// Another process holds it for longer than the limit. Nothing was written.
    #[error("the store is locked by another process: {reason}")]
    Locked {
        /// What the driver said.
        reason: String,
    },
    /// It refused the credentials. Trying again will not help.
    #[error("the store refused the credentials: {reason}")]
    Refused {
        /// What the driver said.
        reason: String,
    },
    /// It was written by a newer hapax, or is no store that hapax can use.
    #[error("this store cannot be used: {reason}")]
    Incompatible {
        /// What is wrong and how to go on.
        reason: String,
    },
    /// What it holds under this key was not written by hapax, or is damaged.
    #[error("a stored value cannot be read: {reason}")]
    Corrupt {
        /// What is wrong with it.
        reason: String,
    },
    /// Anything else; a bug in hapax or in the store.
    #[error("the store failed: {reason}")]
    Internal {
        /// What happened.
        reason: String,
        /// The driver's own error.
        #[source]
        source: Option<Source>,
    },
}

impl StoreError {
    /// [`StoreError::Unavailable`] from a driver's error.
    pub fn unavailable(source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Unavailable { reason: source.to_string(), source: Some(Box::new(source)) }
    }

    /// [`StoreError::Internal`] from a driver's error.
    pub fn internal(source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Internal { reason: source.to_string(), source: Some(Box::new(source)) }
    }

    /// Whether the same call may succeed later without anybody changing anything.
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

    /// Whether a process that is starting should end with this error rather than wait.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Incompatible { .. })
    }

    /// The same error without its source, for each caller of a batch that failed as a whole.
    pub fn without_source(&self) -> Self {
        match self {
            Self::Unavailable { reason, .. } => {
                Self::Unavailable { reason: reason.clone(), source: None }
            }
            Self::Timeout { timeout } => Self::Timeout { timeout: *timeout },
            Self::Full { reason } => Self::Full { reason: reason.clone() },
            Self::ReadOnly { reason } => Self::ReadOnly { reason: reason.clone() },
            Self::Locked { reason } => Self::Locked { reason: reason.clone() },
            Self::Refused { reason } => Self::Refused { reason: reason.clone() },
            Self::Incompatible { reason } => Self::Incompatible { reason: reason.clone() },
            Self::Corrupt { reason } => Self::Corrupt { reason: reason.clone() },
            Self::Internal { reason, .. } => {
                Self::Internal { reason: reason.clone(), source: None }
            }
        }
    }

    /// A short stable word for metric labels.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Timeout { .. } => "timeout",
            Self::Full { .. } => "full",
            Self::ReadOnly { .. } => "read_only",
            Self::Locked { .. } => "locked",
            Self::Refused { .. } => "refused",
            Self::Incompatible { .. } => "incompatible",
            Self::Corrupt { .. } => "corrupt",
            Self::Internal { .. } => "internal",
        }
    }
}
