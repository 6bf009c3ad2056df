//! The versions of the stored format, and the migrations between them.

use hapax_core::{OpenMode, StoreError, StoreResult};
use rusqlite::{Connection, ErrorCode, OptionalExtension};

use crate::SqliteConfig;
use crate::connect::connect;
use crate::error::store_error;
use crate::files::StoreFiles;

/// The schema version that this hapax writes.
pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

/// The script at position `n` leads from version `n` to `n + 1`.
const MIGRATIONS: &[&str] =
    &[include_str!("schema/v1.sql"), include_str!("schema/v2.sql"), include_str!("schema/v3.sql")];

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
pub fn migrate(connection: &Connection) -> StoreResult<()> {
    if is_current(connection)? {
        return Ok(());
    }
    if !connection.is_autocommit() {
        return apply_migrations(connection);
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(store_error)?;
    let done = apply_migrations(connection)
        .and_then(|()| connection.execute_batch("COMMIT").map_err(store_error));
    if done.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    done
}

/// The SQL that [`migrate`] would run on this file, which it does not change; empty if the tables are up
/// to date. For whoever applies migrations by hand.
///
/// # Errors
/// [`StoreError::Incompatible`] where the tables were written by a newer hapax.
pub fn migration_sql(config: impl Into<SqliteConfig>) -> StoreResult<String> {
    let config = config.into().mode(OpenMode::ReadOnly);
    config.validate()?;
    let from = if config.path.exists() {
        let connection = connect(&StoreFiles::new(config.clone()))?;
        stored_version(&connection)?
    } else {
        0
    };
    match from {
        SCHEMA_VERSION => Ok(String::new()),
        from if from > SCHEMA_VERSION => Err(newer_schema(from)),
        from => Ok(script(from, config.partitions)),
    }
}

/// The migrations after version `from`, as one transaction.
fn script(from: i64, partitions: u16) -> String {
    let mut sql = "PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n".to_owned();
    for (step, script) in (0..).zip(MIGRATIONS).filter(|(step, _)| *step >= from) {
        let version: i64 = step + 1;
        sql.push_str(script);
        sql.push_str(&format!(
            "\nUPDATE hapax_meta SET value = {version} WHERE name = 'schema';\n"
        ));
    }
    sql.push_str(&format!(
        "INSERT INTO hapax_meta (name, value) VALUES ('partitions', {partitions}) \
         ON CONFLICT DO NOTHING;\nCOMMIT;\n"
    ));
    sql
}

/// Refuses a file whose tables [`migrate`] would have to create or change.
pub(crate) fn require_current(connection: &Connection) -> StoreResult<()> {
    if is_current(connection)? {
        return Ok(());
    }
    let reason = match stored_version(connection)? {
        0 => "the file has no tables of hapax; `hapax migrate` creates them".to_owned(),
        found => format!(
            "the file has schema version {found}, and this hapax uses {SCHEMA_VERSION}; `hapax \
             migrate` brings it up to date"
        ),
    };
    Err(StoreError::Incompatible { reason })
}

/// Whether the tables have the current version.
fn is_current(connection: &Connection) -> StoreResult<bool> {
    match stored_version(connection)? {
        found if found > SCHEMA_VERSION => Err(newer_schema(found)),
        found => Ok(found == SCHEMA_VERSION),
    }
}

/// Checked at the beginning of every transaction, because a newer hapax in another process may have
/// migrated the file since this connection was opened, or somebody may have dropped the tables.
pub(crate) fn check_version(connection: &Connection) -> StoreResult<()> {
    let found = match meta(connection, "schema") {
        Ok(found) => found,
        // SQLite's generic error, here: there is no such table.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => None,
        Err(error) => return Err(store_error(error)),
    };
    match found {
        Some(SCHEMA_VERSION) => Ok(()),
        Some(found) if found > SCHEMA_VERSION => Err(newer_schema(found)),
        _ => Err(StoreError::Replaced {
            reason: "the tables of hapax were dropped or replaced".into(),
        }),
    }
}

fn newer_schema(found: i64) -> StoreError {
    let reason = format!(
        "the file has schema version {found}, and this hapax knows versions up to {SCHEMA_VERSION}; \
         use the newer hapax that wrote it, or a copy of the file from before the upgrade"
    );
    StoreError::Incompatible { reason }
}

/// Stores the number of log partitions on first use and refuses a different one later: a reader
/// with another number would look for a job in the wrong partition.
pub(crate) fn check_partitions(connection: &Connection, mine: u16) -> StoreResult<()> {
    let found = match meta(connection, "partitions").map_err(store_error)? {
        Some(found) => found,
        None => {
            connection
                .execute(
                    "INSERT INTO hapax_meta (name, value) VALUES ('partitions', ?1) \
                     ON CONFLICT DO NOTHING",
                    [mine],
                )
                .map_err(store_error)?;
            meta(connection, "partitions").map_err(store_error)?.unwrap_or(0)
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

/// Runs under the write lock and reads the version again, because another process may have migrated
/// meanwhile.
fn apply_migrations(connection: &Connection) -> StoreResult<()> {
    let from = stored_version(connection)?;
    for (step, script) in (0..).zip(MIGRATIONS).filter(|(step, _)| *step >= from) {
        connection.execute_batch(script).map_err(store_error)?;
        connection
            .execute("UPDATE hapax_meta SET value = ?1 WHERE name = 'schema'", [step + 1_i64])
            .map_err(store_error)?;
    }
    Ok(())
}

/// The stored schema version; 0 without tables.
pub(crate) fn stored_version(connection: &Connection) -> StoreResult<i64> {
    let has_tables = connection
        .prepare_cached("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'hapax_meta'")
        .and_then(|mut query| query.exists([]))
        .map_err(store_error)?;
    if !has_tables {
        return Ok(0);
    }
    meta(connection, "schema").map_err(store_error)?.ok_or_else(|| StoreError::Incompatible {
        reason: "its table hapax_meta was not written by hapax; use another file".into(),
    })
}

fn meta(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT value FROM hapax_meta WHERE name = ?1")
        .and_then(|mut query| query.query_row([name], |row| row.get(0)).optional())
}
