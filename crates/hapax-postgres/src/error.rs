use std::error::Error as _;
use std::time::Duration;

use hapax_core::StoreError;
use tokio_postgres::error::SqlState;

/// Why a statement came to nothing, before anybody asks whose fault it was.
#[derive(Debug)]
pub(crate) enum Failure {
    Store(StoreError),
    Driver(tokio_postgres::Error),
    #[cfg(feature = "sqlx")]
    Sqlx(sqlx::Error),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Driver(error)
    }
}

impl Failure {
    /// Whether it is about what was sent, so that the rest of a batch may do better without it.
    /// Locks that ran out count as well: a single statement needs only one.
    pub(crate) fn is_about_data(&self) -> bool {
        match self {
            Self::Driver(error) => match error.code() {
                Some(code) => {
                    ["22", "23", "54"].contains(&class(code.code()))
                        || *code == SqlState::OUT_OF_MEMORY
                }
                None => is_encoding(error),
            },
            _ => false,
        }
    }

    /// Whether the tables are gone, as after a restore of an empty database.
    pub(crate) fn is_missing_schema(&self) -> bool {
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_FUNCTION];
        matches!(self, Self::Driver(error) if error.code().is_some_and(|c| missing.contains(c)))
    }

    /// The typed error of a call with this limit.
    pub(crate) fn into_store(self, limit: Duration) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Driver(error) => match error.as_db_error() {
                Some(answer) => from_server(answer.code().code(), answer.message(), limit),
                None => from_driver(error),
            },
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => crate::tx::sqlx_adapter::error(error, limit),
        }
    }
}

/// The same error once more, for the next one of a batch; without the driver's own.
pub(crate) fn again(error: &StoreError) -> StoreError {
    use StoreError::*;
    match error {
        Unavailable { reason, .. } => Unavailable { reason: reason.clone(), source: None },
        Timeout { timeout } => Timeout { timeout: *timeout },
        Full { reason } => Full { reason: reason.clone() },
        ReadOnly { reason } => ReadOnly { reason: reason.clone() },
        Locked { reason } => Locked { reason: reason.clone() },
        Refused { reason } => Refused { reason: reason.clone() },
        Incompatible { reason } => Incompatible { reason: reason.clone() },
        Corrupt { reason } => Corrupt { reason: reason.clone() },
        other => Internal { reason: other.to_string(), source: None },
    }
}

pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt { reason: format!("{what} was not written by hapax") }
}

pub(crate) fn incompatible(reason: impl Into<String>) -> StoreError {
    StoreError::Incompatible { reason: reason.into() }
}

/// By SQLSTATE. Only the message is passed on: detail and context may quote keys and values.
pub(crate) fn from_server(code: &str, message: &str, limit: Duration) -> StoreError {
    let reason = format!("{message} (SQLSTATE {code})");
    match (class(code), code) {
        (_, "53300") => StoreError::Unavailable { reason, source: None },
        ("53", _) => StoreError::Full { reason },
        (_, "25006") => StoreError::ReadOnly { reason },
        // A transaction that lost against another one wrote nothing, and may be run again.
        (_, "55P03" | "40001" | "40P01") => StoreError::Locked { reason },
        (_, "57014") => StoreError::Timeout { timeout: limit },
        ("57" | "08" | "58", _) => StoreError::Unavailable { reason, source: None },
        ("28", _) | (_, "42501") => StoreError::Refused { reason },
        ("3D" | "3F", _) => StoreError::Incompatible { reason },
        (_, "XX001" | "XX002") => StoreError::Corrupt { reason },
        _ => StoreError::Internal { reason, source: None },
    }
}

fn from_driver(error: tokio_postgres::Error) -> StoreError {
    let reason = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    // The driver keeps its kinds to itself; its texts are all there is.
    let kind = error.to_string();
    if ["authentication error", "invalid configuration"].contains(&&*kind) {
        return StoreError::Refused { reason };
    }
    if is_encoding(&error) || kind.starts_with("error deserializing") {
        return StoreError::Internal { reason, source: Some(Box::new(error)) };
    }
    StoreError::Unavailable { reason, source: Some(Box::new(error)) }
}

fn is_encoding(error: &tokio_postgres::Error) -> bool {
    let kind = error.to_string();
    kind.starts_with("error serializing") || kind.starts_with("error encoding")
}

fn class(code: &str) -> &str {
    code.get(..2).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_told_twice_keeps_its_label() {
        let errors = [
            StoreError::Unavailable { reason: "r".into(), source: None },
            StoreError::Timeout { timeout: Duration::from_secs(1) },
            StoreError::Full { reason: "r".into() },
            StoreError::ReadOnly { reason: "r".into() },
            StoreError::Locked { reason: "r".into() },
            StoreError::Refused { reason: "r".into() },
            StoreError::Incompatible { reason: "r".into() },
            StoreError::Corrupt { reason: "r".into() },
            StoreError::Internal { reason: "r".into(), source: None },
        ];
        for error in errors {
            assert_eq!(again(&error).label(), error.label());
        }
    }
}
