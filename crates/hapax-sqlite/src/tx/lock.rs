use std::time::Duration;

use hapax_core::StoreError;
use rusqlite::{Connection, ErrorCode, MAIN_DB, TransactionState};

use crate::error::{bug, fault};

/// Takes the write lock before anything is read, so that what is decided is decided on what is
/// stored now and not on an old snapshot of the caller's transaction. Waits as long as the
/// caller's own busy timeout says.
pub(crate) fn lock(connection: &Connection) -> Result<(), StoreError> {
    if is_held(connection)? { Ok(()) } else { take(connection).map_err(fault) }
}

/// The same without waiting: `false` where somebody else has it.
pub(crate) fn try_lock(connection: &Connection) -> Result<bool, StoreError> {
    if is_held(connection)? {
        return Ok(true);
    }
    let before: u64 =
        connection.pragma_query_value(None, "busy_timeout", |row| row.get(0)).map_err(fault)?;
    connection.busy_timeout(Duration::ZERO).map_err(fault)?;
    let taken = take(connection);
    connection.busy_timeout(Duration::from_millis(before)).map_err(fault)?;
    match taken {
        Ok(()) => Ok(true),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(false),
        Err(error) => Err(fault(error)),
    }
}

fn is_held(connection: &Connection) -> Result<bool, StoreError> {
    if connection.is_autocommit() {
        return Err(bug("hapax_sqlite::tx needs an open transaction; begin one first"));
    }
    Ok(connection.transaction_state(Some(MAIN_DB)).map_err(fault)? == TransactionState::Write)
}

/// A write that changes nothing: the engine takes the lock, and no page becomes dirty.
fn take(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM hapax_meta WHERE name = ''")?.execute([]).map(drop)
}
