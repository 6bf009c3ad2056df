//! Opening a connection the way every connection of this store is opened.

use std::fs::Permissions;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use hapax_core::StoreError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags};
use rustix::fs::Access;
use rustix::io::Errno;

use crate::error::fault;
use crate::{Config, migrate};

/// A connection, and which file it is connected to.
pub(crate) struct Session {
    connection: Connection,
    file: Option<(u64, u64)>,
    lasting: bool,
}

impl Session {
    /// Whether the path still leads to that file. Whoever deletes a database that is in use would
    /// otherwise be the last to know: the engine goes on writing where nobody will ever read.
    pub(crate) fn is_current(&self, config: &Config) -> bool {
        self.file.is_some() && self.file == identity(config)
    }

    /// Whether it may be kept for later. The connections of a process share what one of them
    /// found: as long as a read-only one is open, no new one can write either, though the file
    /// may be written again by now.
    pub(crate) fn is_lasting(&self) -> bool {
        self.lasting
    }
}

impl Deref for Session {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

fn identity(config: &Config) -> Option<(u64, u64)> {
    std::fs::metadata(&config.path).ok().map(|file| (file.dev(), file.ino()))
}

/// A connection in WAL mode with every commit on the disk, on tables of the current version.
pub(crate) fn connect(config: &Config) -> Result<Session, StoreError> {
    let fresh = !config.path.exists();
    let connection = Connection::open_with_flags(
        &config.path,
        // No SQLITE_OPEN_URI: a path is a path, whatever it begins with.
        OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(|error| cannot_open(config, error))?;
    let file = identity(config);
    if fresh {
        owner_only(config);
    }
    connection.busy_timeout(config.patience()).map_err(fault)?;
    connection.set_prepared_statement_cache_capacity(64);
    let mode = prepare(&connection, config).map_err(|error| cannot_open(config, error))?;
    if mode != "wal" {
        let reason = format!(
            "the file is in journal mode `{mode}` and cannot be put into WAL; \
             use a file on a local file system"
        );
        return Err(StoreError::Incompatible { reason });
    }
    migrate::migrate(&connection)?;
    migrate::agree_on_partitions(&connection, config.partitions)?;
    let lasting = can_write(&connection)?;
    connection.busy_timeout(config.patience()).map_err(fault)?;
    Ok(Session { connection, file, lasting })
}

/// Begins to write, and leaves it at that. Where somebody else is writing, it could.
fn can_write(connection: &Connection) -> Result<bool, StoreError> {
    if connection.is_readonly(MAIN_DB) != Ok(false) {
        return Ok(false);
    }
    connection.busy_timeout(Duration::ZERO).map_err(fault)?;
    match connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK") {
        Err(error) => Ok(error.sqlite_error_code() != Some(ErrorCode::ReadOnly)),
        Ok(()) => Ok(true),
    }
}

/// Sets what belongs to the connection, and WAL, which belongs to the file; answers the mode.
fn prepare(connection: &Connection, config: &Config) -> rusqlite::Result<String> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Without it macOS acknowledges what is still in the drive's cache; elsewhere it does nothing.
    connection.pragma_update(None, "fullfsync", true)?;
    // One plan for each statement. Otherwise the engine compiles anew for every value of a LIMIT.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // What a statement may have to undo stays in memory instead of a temporary file.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    if let Some(bytes) = config.max_bytes {
        let page: u64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let pages = i64::try_from((bytes / page).max(1)).unwrap_or(i64::MAX);
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
}

/// By path and not through a descriptor: closing one would drop the locks that other connections
/// of this process hold on the file. It is still empty, so nothing was readable in between, and
/// the files beside it take over its mode.
fn owner_only(config: &Config) {
    let _ = std::fs::set_permissions(&config.path, Permissions::from_mode(0o600));
}

/// SQLite has one word for a folder that is gone and for one that may not be written.
fn cannot_open(config: &Config, error: rusqlite::Error) -> StoreError {
    if error.sqlite_error_code() == Some(ErrorCode::CannotOpen)
        && let Err(Errno::ACCESS | Errno::ROFS) =
            rustix::fs::access(config.folder(), Access::WRITE_OK | Access::EXEC_OK)
    {
        let reason = "hapax may not write to the folder of the file".into();
        return StoreError::ReadOnly { reason };
    }
    fault(error)
}
