//! Errors of statements, and their translation to [`StoreError`].

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::StoreError;
use tokio_postgres::error::SqlState;

/// Why a statement failed, as the driver reported it.
#[derive(Debug)]
pub enum StatementError {
    Store(StoreError),
    Tokio(tokio_postgres::Error),
    #[cfg(feature = "sqlx")]
    Sqlx(sqlx::Error),
}

pub(crate) type SqlResult<T> = Result<T, StatementError>;

impl From<StoreError> for StatementError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<tokio_postgres::Error> for StatementError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Tokio(error)
    }
}

impl StatementError {
    /// Whether one operation may have caused it, by its data or because others lock the same key, so that
    /// the rest of its batch may succeed without that operation. A full lock table counts, because a
    /// single operation needs only one lock.
    pub(crate) fn is_about_one_operation(&self) -> bool {
        match self {
            Self::Store(StoreError::Locked { .. }) => true,
            Self::Tokio(error) => match error.code() {
                Some(code) => {
                    ["22", "23", "54"].contains(&class(code.code()))
                        || *code == SqlState::OUT_OF_MEMORY
                }
                None => is_encoding_error(error),
            },
            _ => false,
        }
    }

    /// Whether the tables are missing, as after a restore of an empty database.
    pub(crate) fn is_missing_schema(&self) -> bool {
        let missing = [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_FUNCTION];
        matches!(self, Self::Tokio(error) if error.code().is_some_and(|c| missing.contains(c)))
    }

    /// The error of a store call with this timeout.
    pub(crate) fn into_store_error(self, timeout: Duration) -> StoreError {
        match self {
            Self::Store(error) => error,
            Self::Tokio(error) => match error.as_db_error() {
                Some(answer) => server_error(answer.code().code(), answer.message(), timeout),
                None => driver_error(error),
            },
            #[cfg(feature = "sqlx")]
            Self::Sqlx(error) => crate::tx::sqlx_adapter::store_error(error, timeout),
        }
    }
}

pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt { reason: format!("{what} was not written by hapax") }
}

pub(crate) fn incompatible(reason: impl Into<String>) -> StoreError {
    StoreError::Incompatible { reason: reason.into() }
}

/// Classifies by SQLSTATE. Only the message is passed on: detail and context may quote keys and
/// values.
pub(crate) fn server_error(code: &str, message: &str, timeout: Duration) -> StoreError {
    let reason = format!("{message} (SQLSTATE {code})");
    match (class(code), code) {
        // PgBouncer has no code of its own for it.
        ("08", _) if message.contains("unsupported startup parameter") => {
            StoreError::Incompatible {
                reason: format!(
                    "{reason}: PgBouncer refuses settings of a session; add pgbouncer=true to the URL, or \
                     `options` to its ignore_startup_parameters if its pool_mode is session"
                ),
            }
        }
        (_, "53300") => StoreError::Unavailable { reason, source: None },
        ("53", _) => StoreError::Full { reason },
        (_, "25006") => StoreError::ReadOnly { reason },
        // A transaction that lost a race wrote nothing and may run again.
        (_, "55P03" | "40001" | "40P01") => StoreError::Locked { reason },
        (_, "57014") => StoreError::Timeout { timeout },
        ("57" | "08" | "58", _) => StoreError::Unavailable { reason, source: None },
        (_, "42501") => StoreError::Refused {
            reason: format!(
                "the role lacks a right: {reason}. Where it may not create tables, `hapax migrate` \
                 with the owner's role does; the guide to stores lists the grants"
            ),
        },
        ("28", _) => StoreError::Refused { reason },
        ("3D" | "3F", _) => StoreError::Incompatible { reason },
        (_, "XX001" | "XX002") => StoreError::Corrupt { reason },
        _ => StoreError::Internal { reason, source: None },
    }
}

fn driver_error(error: tokio_postgres::Error) -> StoreError {
    let reason = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    // The driver does not expose its error kinds, only their texts.
    let kind = error.to_string();
    if ["authentication error", "invalid configuration"].contains(&&*kind) {
        return StoreError::Refused { reason };
    }
    if is_encoding_error(&error) || kind.starts_with("error deserializing") {
        return StoreError::Internal { reason, source: Some(Arc::new(error)) };
    }
    StoreError::Unavailable { reason, source: Some(Arc::new(error)) }
}

fn is_encoding_error(error: &tokio_postgres::Error) -> bool {
    let kind = error.to_string();
    kind.starts_with("error serializing") || kind.starts_with("error encoding")
}

fn class(code: &str) -> &str {
    code.get(..2).unwrap_or_default()
}
