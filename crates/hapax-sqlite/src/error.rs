use hapax_core::StoreError;
use rusqlite::ErrorCode;

/// What an engine's error means to a caller. The engine never puts bound values into its texts.
pub(crate) fn fault(error: rusqlite::Error) -> StoreError {
    let reason = error.to_string();
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed,
        ) => StoreError::Locked { reason },
        Some(ErrorCode::DiskFull) => StoreError::Full { reason },
        // The file next to the database that readers and writers share could not grow.
        Some(ErrorCode::SystemIoFailure)
            if error.sqlite_extended_error_code() == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) =>
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

/// The same error for each caller of a batch that failed as a whole.
pub(crate) fn twin(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unavailable { reason, .. } => {
            StoreError::Unavailable { reason: reason.clone(), source: None }
        }
        StoreError::Timeout { timeout } => StoreError::Timeout { timeout: *timeout },
        StoreError::Full { reason } => StoreError::Full { reason: reason.clone() },
        StoreError::ReadOnly { reason } => StoreError::ReadOnly { reason: reason.clone() },
        StoreError::Locked { reason } => StoreError::Locked { reason: reason.clone() },
        StoreError::Refused { reason } => StoreError::Refused { reason: reason.clone() },
        StoreError::Incompatible { reason } => StoreError::Incompatible { reason: reason.clone() },
        StoreError::Corrupt { reason } => StoreError::Corrupt { reason: reason.clone() },
        other => StoreError::Internal { reason: other.to_string(), source: None },
    }
}

/// Something that cannot happen unless hapax itself is wrong.
pub(crate) fn bug(reason: &str) -> StoreError {
    StoreError::Internal { reason: reason.into(), source: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    #[test]
    fn every_condition_has_its_own_word() {
        for (code, word) in [
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
            let error = fault(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            assert_eq!(error.label(), word, "{code}");
            assert_eq!(twin(&error).label(), word, "{code}");
        }
    }
}
