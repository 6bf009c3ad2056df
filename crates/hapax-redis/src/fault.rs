//! What a driver's error means to hapax.

use std::time::Duration;

use hapax_core::StoreError;
use redis::{ErrorKind, RedisError};

/// Said by [`crate::node::Node`] where nobody knows whether the server acted.
pub(crate) const LOST: &str = "the connection was lost before the answer came";
/// Said by [`crate::node::Node`] where a node of a Cluster did not answer.
pub(crate) const SILENT: &str = "the node did not answer in time";

/// Said where a write was done, and may be lost by a failover all the same.
pub(crate) const UNCONFIRMED: &str =
    "too few replicas confirmed the write in time; it may or may not last";

/// What kind of trouble an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is gone, and an answer with it.
    Cut,
    /// No answer in time.
    Silent,
    Unavailable,
    /// Done, but not by enough replicas.
    Unconfirmed,
    Full,
    ReadOnly,
    Refused,
    Corrupt,
    Internal,
}

impl Fault {
    pub(crate) fn of(error: &RedisError) -> Self {
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Refused;
        }
        if error.is_timeout() {
            return Self::Silent;
        }
        // Errors of a script on Redis 6.2, and of the first connection to a Cluster, have the code
        // somewhere in their text.
        let text = error.to_string();
        let says = |codes: &[&str]| {
            let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
            error.code().is_some_and(|code| codes.contains(&code))
                || words.any(|word| codes.contains(&word))
        };
        if text.contains(LOST) {
            Self::Cut
        } else if text.contains(SILENT) {
            Self::Silent
        } else if text.contains(UNCONFIRMED) {
            Self::Unconfirmed
        } else if says(&["NOAUTH", "WRONGPASS", "NOPERM", "AuthenticationFailed"]) {
            Self::Refused
        } else if says(&["OOM", "MISCONF"]) {
            Self::Full
        } else if says(&["READONLY"]) {
            Self::ReadOnly
        } else if says(&["WRONGTYPE", "CORRUPT"]) {
            Self::Corrupt
        } else if error.is_connection_dropped() {
            Self::Cut
        } else if PASSING_KINDS.contains(&error.kind()) || says(PASSING_CODES) {
            Self::Unavailable
        } else {
            Self::Internal
        }
    }

    pub(crate) fn error(self, error: RedisError, limit: Duration) -> StoreError {
        let reason = error.to_string();
        match self {
            Self::Unconfirmed => {
                StoreError::Unavailable { reason: UNCONFIRMED.into(), source: None }
            }
            Self::Cut | Self::Unavailable => StoreError::unavailable(error),
            Self::Silent => StoreError::Timeout { limit },
            Self::Full => StoreError::Full { reason },
            Self::ReadOnly => StoreError::ReadOnly { reason },
            Self::Refused => StoreError::Refused { reason },
            Self::Corrupt => StoreError::Corrupt { reason },
            Self::Internal => StoreError::internal(error),
        }
    }
}

const PASSING_KINDS: &[ErrorKind] = &[
    ErrorKind::Io,
    ErrorKind::ClusterConnectionNotFound,
    ErrorKind::MasterNameNotFoundBySentinel,
    ErrorKind::Parse,
];

/// `clients` is from `max number of clients reached`, which has no code of its own.
const PASSING_CODES: &[&str] = &[
    "LOADING",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MASTERDOWN",
    "MOVED",
    "ASK",
    "NOREPLICAS",
    "BUSY",
    "clients",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(answer: &str) -> Fault {
        let value = redis::parse_redis_value(answer.as_bytes()).unwrap();
        Fault::of(&value.extract_error().unwrap_err())
    }

    #[test]
    fn answers_of_the_server_are_told_apart() {
        for (answer, expected) in [
            ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", Fault::Full),
            ("-MISCONF Errors writing to the AOF file: No space left\r\n", Fault::Full),
            ("-READONLY You can't write against a read only replica.\r\n", Fault::ReadOnly),
            ("-NOAUTH Authentication required.\r\n", Fault::Refused),
            ("-NOPERM User u has no permissions to run the 'get' command\r\n", Fault::Refused),
            ("-WRONGTYPE Operation against a key\r\n", Fault::Corrupt),
            ("-LOADING Redis is loading the dataset in memory\r\n", Fault::Unavailable),
            ("-CLUSTERDOWN Hash slot not served\r\n", Fault::Unavailable),
            ("-MASTERDOWN Link with MASTER is down\r\n", Fault::Unavailable),
            ("-NOREPLICAS Not enough good replicas to write.\r\n", Fault::Unavailable),
            ("-ERR unknown command\r\n", Fault::Internal),
        ] {
            assert_eq!(fault(answer), expected, "{answer}");
        }
    }

    #[test]
    fn errors_inside_a_script_on_redis_6_have_their_code_in_the_text() {
        let answer = "-ERR Error running script (call to f_0): @user_script:9: @user_script: 9: -OOM command not allowed when used memory > 'maxmemory'.\r\n";
        assert_eq!(fault(answer), Fault::Full);
    }
}
