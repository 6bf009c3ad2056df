use std::time::Duration;

use crate::{Fence, InvalidKey, StoreError};

/// The result of a `once`: of a command, of an inbox, or inside a SQL transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once<T> {
    /// The value, of this run or of the first one.
    pub value: T,
    /// Whether an earlier run had the effect; this call did nothing.
    pub replayed: bool,
}

impl<T> Once<T> {
    /// The effect ran now and gave this value.
    pub const fn first(value: T) -> Self {
        Self { value, replayed: false }
    }

    /// An earlier run had the effect and gave this value.
    pub const fn replayed(value: T) -> Self {
        Self { value, replayed: true }
    }

    /// The same result with another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Once<U> {
        Once { value: change(self.value), replayed: self.replayed }
    }
}

/// Why a `once` gave no value. `E` is the error of the effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The effect failed; the claim was given back.
    #[error("the effect failed")]
    Failed(#[source] E),
    /// Another caller is running the effect.
    #[error("the effect is in progress; try again in {} ms", retry_after.as_millis())]
    InProgress {
        /// When the claim of the other caller lapses, unless it is renewed.
        retry_after: Duration,
    },
    /// The key was used before with another input.
    #[error("the key was used before with another input")]
    KeyReused,
    /// An earlier owner stopped renewing its claim, and may or may not have acted.
    #[error("an earlier attempt ended {} ms ago with an unknown outcome", since.as_millis())]
    OutcomeUnknown {
        /// How long ago the lease ran out.
        since: Duration,
    },
    /// The effect ran, but its claim was lost meanwhile: another owner may have run it too.
    #[error("the effect ran, but its claim was lost meanwhile")]
    Lost,
    /// The operation, consumer, key or message id is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The input or the value cannot be written or read as JSON.
    #[error("the input or the value is not valid JSON")]
    Json(#[from] serde_json::Error),
    /// The store failed. Where this happened after the effect, the outcome is unknown.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<E> OnceError<E> {
    /// Whether calling again with the same key may give a value, and cannot run the effect twice
    /// beyond what the policy for unknown outcomes allows.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed(_) | Self::InProgress { .. } => true,
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// The attempt that an effect runs as, to be passed on to the systems that it writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunContext {
    /// Grows with every attempt.
    pub fence: Fence,
    /// 1 for the first attempt.
    pub attempt: u32,
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn once_error_says_whether_a_retry_is_safe_and_keeps_its_source() {
        let failed = OnceError::Failed(std::io::Error::other("no bank"));
        assert!(failed.is_retryable());
        assert_eq!(failed.source().unwrap().to_string(), "no bank");
        let reused: OnceError<std::io::Error> = OnceError::KeyReused;
        assert!(!reused.is_retryable());
        let timeout = Duration::from_secs(2);
        assert!(OnceError::<std::io::Error>::from(StoreError::Timeout { timeout }).is_retryable());
    }
}
