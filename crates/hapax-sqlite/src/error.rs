//! Engine errors as [`StoreError`]s.

use hapax_core::StoreError;
use rusqlite::ErrorCode;

/// Classifies an engine error. SQLite never puts bound values into its texts, so they may be shown.
pub(crate) fn store_error(error: rusqlite::Error) -> StoreError {
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed,
        ) => StoreError::Locked { reason },
        Some(ErrorCode::DiskFull) => StoreError::Full { reason },
        // The shared-memory file beside the database could not grow.
        Some(ErrorCode::SystemIoFailure)
            if error.sqlite_error().map(|error| error.extended_code)
                == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) =>
        {
            StoreError::Full { reason }
        }
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => StoreError::ReadOnly { reason },
        Some(ErrorCode::DatabaseCorrupt) => StoreError::Corrupt { reason },
        Some(ErrorCode::NotADatabase) => StoreError::Incompatible {
            reason: "the file is not a SQLite database; name another file".into(),
        },
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::OutOfMemory) => {
            StoreError::unavailable(error)
        }
        _ => StoreError::internal(error),
    }
}

/// As [`store_error`], for reading rows: a column of the wrong type or range is corruption. The
/// engine's text for that may quote the value, so it is replaced.
pub(crate) fn column_error(error: rusqlite::Error) -> StoreError {
    if error.sqlite_error_code().is_some() {
        return store_error(error);
    }
    StoreError::Corrupt { reason: "a column holds what hapax never writes".into() }
}

/// A state that only a bug in hapax can lead to.
pub(crate) fn internal_error(reason: &str) -> StoreError {
    StoreError::Internal { reason: reason.into(), source: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn engine_errors_map_to_store_errors() {
        for (code, label) in [
            (ffi::SQLITE_BUSY, "locked"),
            (ffi::SQLITE_BUSY_SNAPSHOT, "locked"),
            (ffi::SQLITE_LOCKED, "locked"),
            (ffi::SQLITE_FULL, "full"),
            (ffi::SQLITE_IOERR_SHMSIZE, "full"),
            (ffi::SQLITE_READONLY, "read_only"),
            (ffi::SQLITE_READONLY_DBMOVED, "read_only"),
            (ffi::SQLITE_PERM, "read_only"),
            (ffi::SQLITE_CORRUPT, "corrupt"),
            (ffi::SQLITE_NOTADB, "incompatible"),
            (ffi::SQLITE_IOERR_FSYNC, "unavailable"),
            (ffi::SQLITE_CANTOPEN, "unavailable"),
            (ffi::SQLITE_MISUSE, "internal"),
        ] {
            let error = store_error(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            assert_eq!(error.label(), label, "{code}");
        }
    }
}
