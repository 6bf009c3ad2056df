//! Classifies the driver's errors and turns them into [`StoreError`].

use std::time::Duration;

use hapax_core::StoreError;
use redis::{ErrorKind, RedisError};

/// The text by which a Cluster's node reports that it is unknown whether the server executed the command.
pub(crate) const REPLY_LOST: &str = "the connection was lost before the reply came";
/// The text by which a Cluster's node reports a timeout.
pub(crate) const NODE_TIMEOUT: &str = "the node did not reply in time";
/// The text of an error for a write that was done, but that a failover may lose.
pub(crate) const UNCONFIRMED: &str =
    "too few replicas confirmed the write in time; it may or may not last";

/// A part of the TLS library's text for a certificate that was not accepted.
const UNTRUSTED: &str = "invalid peer certificate";
const CA_ADVICE: &str = "`?ca=FILE` in the URL names another authority to trust";

/// The class of an error, which decides about the connection and the caller's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedisErrorClass {
    /// The connection broke, and a reply may be lost.
    Disconnected,
    TimedOut,
    Unavailable,
    /// The write was done, but too few replicas confirmed it.
    Unconfirmed,
    Full,
    ReadOnly,
    Refused,
    Corrupt,
    Internal,
}

impl RedisErrorClass {
    fn of(error: &RedisError) -> Self {
        if error.kind() == ErrorKind::AuthenticationFailed {
            return Self::Refused;
        }
        if error.is_timeout() {
            return Self::TimedOut;
        }
        // Redis 6.2 puts the code of an error inside a script anywhere into the text, and so does the driver
        // for the first connection to a Cluster.
        let text = error.to_string();
        let has_code = |codes: &[&str]| {
            let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
            error.code().is_some_and(|code| codes.contains(&code))
                || words.any(|word| codes.contains(&word))
        };
        if text.contains(REPLY_LOST) {
            Self::Disconnected
        } else if text.contains(NODE_TIMEOUT) {
            Self::TimedOut
        } else if text.contains(UNCONFIRMED) {
            Self::Unconfirmed
        } else if has_code(&["NOAUTH", "WRONGPASS", "NOPERM", "AuthenticationFailed"]) {
            Self::Refused
        } else if has_code(&["OOM", "MISCONF"]) {
            Self::Full
        } else if has_code(&["READONLY"]) {
            Self::ReadOnly
        } else if has_code(&["WRONGTYPE", "CORRUPT"]) {
            Self::Corrupt
        } else if error.is_connection_dropped() {
            Self::Disconnected
        } else if TRANSIENT_KINDS.contains(&error.kind()) || has_code(TRANSIENT_CODES) {
            Self::Unavailable
        } else {
            Self::Internal
        }
    }
}

/// A driver's error with its class.
pub(crate) struct ClassifiedError {
    pub(crate) class: RedisErrorClass,
    error: RedisError,
}

impl From<RedisError> for ClassifiedError {
    fn from(error: RedisError) -> Self {
        Self { class: RedisErrorClass::of(&error), error }
    }
}

impl ClassifiedError {
    pub(crate) fn into_store_error(self, timeout: Duration) -> StoreError {
        let Self { class, error } = self;
        let reason = error.to_string();
        match class {
            RedisErrorClass::Unconfirmed => {
                StoreError::Unavailable { reason: UNCONFIRMED.into(), source: None }
            }
            RedisErrorClass::Disconnected | RedisErrorClass::Unavailable
                if reason.contains(UNTRUSTED) =>
            {
                StoreError::Unavailable { reason: format!("{reason}; {CA_ADVICE}"), source: None }
            }
            RedisErrorClass::Disconnected | RedisErrorClass::Unavailable => {
                StoreError::unavailable(error)
            }
            RedisErrorClass::TimedOut => StoreError::Timeout { timeout },
            RedisErrorClass::Full => StoreError::Full { reason },
            RedisErrorClass::ReadOnly => StoreError::ReadOnly { reason },
            RedisErrorClass::Refused => StoreError::Refused { reason },
            RedisErrorClass::Corrupt => StoreError::Corrupt { reason },
            RedisErrorClass::Internal => StoreError::internal(error),
        }
    }
}

const TRANSIENT_KINDS: &[ErrorKind] = &[
    ErrorKind::Io,
    ErrorKind::ClusterConnectionNotFound,
    ErrorKind::MasterNameNotFoundBySentinel,
    ErrorKind::Parse,
];

/// `clients` is a word of `max number of clients reached`, which has no code.
const TRANSIENT_CODES: &[&str] = &[
    "LOADING",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "MASTERDOWN",
    "MOVED",
    "ASK",
    "NOREPLICAS",
    "LATE",
    "BUSY",
    "clients",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn class(reply: &str) -> RedisErrorClass {
        let value = redis::parse_redis_value(reply.as_bytes()).unwrap();
        RedisErrorClass::of(&value.extract_error().unwrap_err())
    }

    #[test]
    fn server_errors_are_classified_by_their_code() {
        for (reply, expected) in [
            ("-OOM command not allowed when used memory > 'maxmemory'.\r\n", RedisErrorClass::Full),
            ("-MISCONF Errors writing to the AOF file: No space left\r\n", RedisErrorClass::Full),
            (
                "-READONLY You can't write against a read only replica.\r\n",
                RedisErrorClass::ReadOnly,
            ),
            ("-NOAUTH Authentication required.\r\n", RedisErrorClass::Refused),
            (
                "-NOPERM User u has no permissions to run the 'get' command\r\n",
                RedisErrorClass::Refused,
            ),
            ("-WRONGTYPE Operation against a key\r\n", RedisErrorClass::Corrupt),
            ("-LOADING Redis is loading the dataset in memory\r\n", RedisErrorClass::Unavailable),
            ("-CLUSTERDOWN Hash slot not served\r\n", RedisErrorClass::Unavailable),
            ("-MASTERDOWN Link with MASTER is down\r\n", RedisErrorClass::Unavailable),
            ("-NOREPLICAS Not enough good replicas to write.\r\n", RedisErrorClass::Unavailable),
            ("-ERR unknown command\r\n", RedisErrorClass::Internal),
        ] {
            assert_eq!(class(reply), expected, "{reply}");
        }
    }

    #[test]
    fn script_errors_of_redis_6_are_classified_by_their_text() {
        let reply = "-ERR Error running script (call to f_0): @user_script:9: @user_script: 9: -OOM command not allowed when used memory > 'maxmemory'.\r\n";
        assert_eq!(class(reply), RedisErrorClass::Full);
    }
}
