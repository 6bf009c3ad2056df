//! The write lock of the database, taken by hapax inside the caller's transaction.

use std::time::Duration;

use hapax_core::StoreResult;
use rusqlite::{Connection, ErrorCode, MAIN_DB, TransactionState};

use crate::error::{internal_error, store_error};
use crate::session::UnsignedColumns;

/// Deletes no row: SQLite takes the lock for it, and no page becomes dirty.
pub(crate) const TAKE_LOCK: &str = "DELETE FROM hapax_meta WHERE name = ''";

/// Takes the write lock before anything is read, so that decisions are made on the stored rows and
/// not on an old snapshot of the caller's transaction. Waits as long as the caller's busy timeout.
pub(crate) fn lock(connection: &Connection) -> StoreResult<()> {
    if is_held(connection)? { Ok(()) } else { take(connection).map_err(store_error) }
}

/// As [`lock`] without waiting: `false` where another connection holds the lock.
pub(crate) fn try_lock(connection: &Connection) -> StoreResult<bool> {
    if is_held(connection)? {
        return Ok(true);
    }
    let timeout = connection
        .pragma_query_value(None, "busy_timeout", |row| row.unsigned(0))
        .map_err(store_error)?;
    connection.busy_timeout(Duration::ZERO).map_err(store_error)?;
    let taken = take(connection);
    connection.busy_timeout(Duration::from_millis(timeout)).map_err(store_error)?;
    match taken {
        Ok(()) => Ok(true),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(false),
        Err(error) => Err(store_error(error)),
    }
}

pub(super) fn require_transaction(connection: &Connection) -> StoreResult<()> {
    if connection.is_autocommit() {
        return Err(internal_error("`hapax()` needs an open transaction; begin one first"));
    }
    Ok(())
}

fn is_held(connection: &Connection) -> StoreResult<bool> {
    require_transaction(connection)?;
    let state = connection.transaction_state(Some(MAIN_DB)).map_err(store_error)?;
    Ok(state == TransactionState::Write)
}

fn take(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached(TAKE_LOCK)?.execute([]).map(drop)
}
