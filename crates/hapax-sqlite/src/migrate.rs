//! The versions of the stored format, and the way from one to the next.

use hapax_core::StoreError;
use rusqlite::{Connection, OptionalExtension};

use crate::error::{bug, fault};

/// What this hapax writes.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// The script at position `n` leads from version `n` to `n + 1`.
const MIGRATIONS: &[&str] = &[include_str!("schema/v1.sql"), include_str!("schema/v2.sql")];

/// Creates hapax's tables, or brings older ones up to date, in a database that may hold other
/// tables too. Safe to call at every start, from several processes at once, and inside a
/// transaction.
///
/// ```
/// use hapax_sqlite::rusqlite::Connection;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let connection = Connection::open_in_memory()?;
/// hapax_sqlite::migrate(&connection)?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`StoreError::Incompatible`] where the tables were written by a newer hapax.
pub fn migrate(connection: &Connection) -> Result<(), StoreError> {
    if check(connection)? {
        return Ok(());
    }
    if !connection.is_autocommit() {
        return climb(connection);
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(fault)?;
    let done = climb(connection).and_then(|()| connection.execute_batch("COMMIT").map_err(fault));
    if done.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    done
}

/// Whether the tables are those of this version.
fn check(connection: &Connection) -> Result<bool, StoreError> {
    match version(connection)? {
        found if found > VERSION => Err(newer(found)),
        found => Ok(found == VERSION),
    }
}

/// At the beginning of every transaction: another process may have brought a newer hapax since
/// this one opened the file. An error makes its connection be opened, and migrated, anew.
pub(crate) fn confirm(connection: &Connection) -> Result<(), StoreError> {
    match number(connection).map_err(fault)? {
        Some(VERSION) => Ok(()),
        Some(found) if found > VERSION => Err(newer(found)),
        _ => Err(bug("the tables of hapax were changed by somebody else")),
    }
}

fn newer(found: i64) -> StoreError {
    let reason = format!(
        "the file has schema version {found}, and this hapax knows versions up to {VERSION}; \
         use the newer hapax that wrote it, or a copy of the file from before the upgrade"
    );
    StoreError::Incompatible { reason }
}

/// The first store that opens the file says how many partitions its logs have; nobody else may
/// think otherwise, or readers would look for a job where no writer puts it.
pub(crate) fn agree_on_partitions(connection: &Connection, mine: u16) -> Result<(), StoreError> {
    let found = match meta(connection, "partitions").map_err(fault)? {
        Some(found) => found,
        None => {
            connection
                .execute(
                    "INSERT INTO hapax_meta (name, value) VALUES ('partitions', ?1) \
                     ON CONFLICT DO NOTHING",
                    [mine],
                )
                .map_err(fault)?;
            meta(connection, "partitions").map_err(fault)?.unwrap_or(0)
        }
    };
    if found == i64::from(mine) {
        return Ok(());
    }
    let reason = format!(
        "the logs of the file have {found} partitions, and this hapax is set to {mine}; \
         set it to {found}, the number can never be changed"
    );
    Err(StoreError::Incompatible { reason })
}

/// Under the write lock: another process may have been here first.
fn climb(connection: &Connection) -> Result<(), StoreError> {
    let from = version(connection)?;
    for (step, script) in (0..).zip(MIGRATIONS).filter(|(step, _)| *step >= from) {
        connection.execute_batch(script).map_err(fault)?;
        connection
            .execute("UPDATE hapax_meta SET value = ?1 WHERE name = 'schema'", [step + 1_i64])
            .map_err(fault)?;
    }
    Ok(())
}

/// 0 where there are no tables yet.
fn version(connection: &Connection) -> Result<i64, StoreError> {
    let known = connection
        .prepare_cached("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'hapax_meta'")
        .and_then(|mut query| query.exists([]))
        .map_err(fault)?;
    if !known {
        return Ok(0);
    }
    number(connection).map_err(fault)?.ok_or_else(|| StoreError::Incompatible {
        reason: "its table hapax_meta was not written by hapax; use another file".into(),
    })
}

fn number(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    meta(connection, "schema")
}

fn meta(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT value FROM hapax_meta WHERE name = ?1")
        .and_then(|mut query| query.query_row([name], |row| row.get(0)).optional())
}
