use std::error::Error;
use std::fmt;
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
///
/// The error of the effect need not be a `std::error::Error`: `anyhow::Error` and boxed errors are
/// none. Therefore [`Failed`](Self::Failed) prints it, causes included, instead of naming it as its source.
///
/// ```
/// # use hapax_core::{OnceError, Operation, command::Commands, memory::MemoryStore};
/// async fn order(commands: &Commands, cups: u32) -> anyhow::Result<String> {
///     let effect = || async { anyhow::Ok(format!("{cups} cups")) };
///     Ok(commands.once(Operation("CreateOrder"), "key-1", &cups, effect).await?.value)
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> anyhow::Result<()> {
/// # let commands = Commands::new(std::sync::Arc::new(MemoryStore::default()));
/// # assert_eq!(order(&commands, 2).await?, "2 cups");
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The effect failed; the claim was given back.
    Failed(E),
    /// Another caller is running the effect.
    InProgress {
        /// When the claim of the other caller lapses, unless it is renewed.
        retry_after: Duration,
    },
    /// The key was used before with another input.
    KeyReused,
    /// An earlier owner stopped renewing its claim, and may or may not have acted.
    OutcomeUnknown {
        /// How long ago the lease ran out.
        since: Duration,
    },
    /// The effect ran, but its claim was lost meanwhile: another owner may have run it too.
    Lost,
    /// The operation, consumer, key or message id is invalid.
    Invalid(InvalidKey),
    /// The input or the value cannot be written or read as JSON.
    Json(serde_json::Error),
    /// The store failed. Where this happened after the effect, the outcome is unknown.
    Store(StoreError),
}

impl<E: fmt::Display> fmt::Display for OnceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `#` makes `anyhow::Error` print its causes too.
            Self::Failed(error) => write!(f, "the effect failed: {error:#}"),
            Self::InProgress { retry_after } => {
                let millis = retry_after.as_millis();
                write!(f, "the effect is in progress; try again in {millis} ms")
            }
            Self::KeyReused => f.write_str("the key was used before with another input"),
            Self::OutcomeUnknown { since } => {
                let millis = since.as_millis();
                write!(f, "an earlier attempt ended {millis} ms ago with an unknown outcome")
            }
            Self::Lost => f.write_str("the effect ran, but its claim was lost meanwhile"),
            Self::Invalid(error) => error.fmt(f),
            Self::Json(_) => f.write_str("the input or the value is not valid JSON"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> Error for OnceError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Invalid(error) => error.source(),
            Self::Json(error) => Some(error),
            Self::Store(error) => error.source(),
            _ => None,
        }
    }
}

impl<E> From<InvalidKey> for OnceError<E> {
    fn from(error: InvalidKey) -> Self {
        Self::Invalid(error)
    }
}

impl<E> From<serde_json::Error> for OnceError<E> {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

impl<E> From<StoreError> for OnceError<E> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
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
    use super::*;

    #[test]
    fn once_error_says_whether_a_retry_is_safe() {
        assert!(OnceError::Failed(std::io::Error::other("no bank")).is_retryable());
        let reused: OnceError<std::io::Error> = OnceError::KeyReused;
        assert!(!reused.is_retryable());
        let timeout = Duration::from_secs(2);
        assert!(OnceError::<std::io::Error>::from(StoreError::Timeout { timeout }).is_retryable());
    }

    #[test]
    fn fault_43_once_error_becomes_anyhows_and_prints_all_causes() {
        let effect = anyhow::anyhow!("connection refused").context("no bank");
        let error = anyhow::Error::from(OnceError::Failed(effect));
        assert_eq!(error.to_string(), "the effect failed: no bank: connection refused");
    }
}
