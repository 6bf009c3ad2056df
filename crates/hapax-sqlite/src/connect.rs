//! Opens connections to the database file: WAL, every commit synced, current schema.

use std::fs::Permissions;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use hapax_core::{OpenMode, StoreError, StoreResult};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags};
use rustix::fs::Access;
use rustix::io::Errno;

use crate::error::store_error;
use crate::files::{OpenFiles, StoreFiles, beside};
use crate::session::{BatchSequence, Session, SessionClock, UnsignedColumns};
use crate::store_clock::StoreClock;
use crate::{SqliteConfig, migrate};

/// A connection, and the files that it has open.
pub(crate) struct FileConnection {
    connection: Connection,
    open: OpenFiles,
    reusable: bool,
    clock: StoreClock,
    sequence: BatchSequence,
}

impl FileConnection {
    /// Refuses the store if a file of the connection was removed or replaced since it was opened.
    pub(crate) fn check_files(&self, files: &StoreFiles) -> StoreResult<()> {
        files.compare(&self.open)
    }

    /// The writer's open transaction, for a call.
    pub(crate) fn session(&self) -> Session<'_> {
        let (connection, clock) = (&self.connection, SessionClock::Store(&self.clock));
        Session { connection, clock, sequence: Some(&self.sequence) }
    }

    /// The numbers that the open transaction gives out.
    pub(crate) fn sequence(&self) -> &BatchSequence {
        &self.sequence
    }

    pub(crate) fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// Whether the connection may be kept for later calls. All connections of a process to one file
    /// share its mode: while a read-only one is open, a new one cannot write either, even after the
    /// file became writable again.
    pub(crate) fn is_reusable(&self) -> bool {
        self.reusable
    }
}

impl Deref for FileConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for FileConnection {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// Opens a connection in WAL mode with `synchronous=FULL` and migrates the tables. A store that was
/// open before makes no new file and no new tables: theirs were taken away.
pub(crate) fn connect(files: &StoreFiles) -> StoreResult<FileConnection> {
    files.check_database()?;
    let config = &files.config;
    let is_new = !config.path.exists();
    if is_new && config.mode != OpenMode::Migrate {
        return Err(missing_file(config));
    }
    if config.mode == OpenMode::ReadOnly {
        return connect_read_only(files);
    }
    // No SQLITE_OPEN_URI: a path is a path, whatever it begins with.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let creates = config.mode == OpenMode::Migrate && !files.are_known();
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, creates);
    let connection = Connection::open_with_flags(&config.path, flags)
        .map_err(|error| open_error(config, error))?;
    if is_new {
        restrict_to_owner(config);
    }
    connection.busy_timeout(config.lock_timeout()).map_err(store_error)?;
    connection.set_prepared_statement_cache_capacity(64);
    if config.mode == OpenMode::Existing {
        // Before the file is switched to WAL: it may belong to another program.
        migrate::require_current(&connection)?;
    }
    let mode = configure(&connection, config).map_err(|error| open_error(config, error))?;
    if mode != "wal" {
        let reason = format!(
            "the file is in journal mode `{mode}` and cannot be put into WAL; \
             use a file on a local file system"
        );
        return Err(StoreError::Incompatible { reason });
    }
    if files.are_known() {
        migrate::check_version(&connection).map_err(|error| files.remember(error))?;
    } else {
        migrate::migrate(&connection)?;
    }
    migrate::check_partitions(&connection, config.partitions)?;
    let reusable = can_write(&connection)?;
    connection.busy_timeout(config.lock_timeout()).map_err(store_error)?;
    let clock = StoreClock::open(&connection, config)?;
    let (open, sequence) = (files.note_open()?, BatchSequence::default());
    Ok(FileConnection { connection, open, reusable, clock, sequence })
}

/// The connection, if its files are still in place, or a new one.
pub(crate) fn reuse_or_connect(
    connection: Option<FileConnection>,
    files: &StoreFiles,
    connect: impl FnOnce(&StoreFiles) -> StoreResult<FileConnection>,
) -> StoreResult<FileConnection> {
    match connection {
        Some(connection) => connection.check_files(files).map(|()| connection),
        None => connect(files),
    }
}

/// Opens a connection that changes nothing, neither in the file nor beside it.
///
/// A read-only connection to a file in WAL mode creates its `-wal` and `-shm` where they are missing.
/// Without them and without a journal nobody is writing, and the file is read as immutable.
fn connect_read_only(files: &StoreFiles) -> StoreResult<FileConnection> {
    let config = &files.config;
    let is_in_use = ["-wal", "-journal"].iter().any(|end| beside(&config.path, end).exists());
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match is_in_use {
        true => Connection::open_with_flags(&config.path, flags),
        false => {
            let uri = format!("file:{}?immutable=1", percent_encoded(&config.path));
            Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)
        }
    };
    let connection = opened.map_err(|error| open_error(config, error))?;
    connection.busy_timeout(config.lock_timeout()).map_err(store_error)?;
    // A setting of the connection alone, as for one that writes.
    connection.pragma_update(None, "synchronous", "FULL").map_err(store_error)?;
    // Without tables there are no leases to measure.
    let clock = StoreClock::open(&connection, config).unwrap_or(StoreClock::Steady);
    let (open, sequence) = (files.note_open()?, BatchSequence::default());
    Ok(FileConnection { connection, open, reusable: false, clock, sequence })
}

/// A path as part of a URI.
fn percent_encoded(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'_' | b'-' => text.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(*byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn missing_file(config: &SqliteConfig) -> StoreError {
    let path = config.path.display();
    let reason = format!("there is no file {path}; `hapax migrate` creates one");
    StoreError::Incompatible { reason }
}

/// Whether a write transaction can begin. A lock held by another process counts as writable.
fn can_write(connection: &Connection) -> StoreResult<bool> {
    if connection.is_readonly(MAIN_DB) != Ok(false) {
        return Ok(false);
    }
    connection.busy_timeout(Duration::ZERO).map_err(store_error)?;
    match connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK") {
        Err(error) => Ok(error.sqlite_error_code() != Some(ErrorCode::ReadOnly)),
        Ok(()) => Ok(true),
    }
}

/// Sets the pragmas of the connection and the journal mode of the file, and returns that mode.
fn configure(connection: &Connection, config: &SqliteConfig) -> rusqlite::Result<String> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    // macOS acknowledges writes that are still in the drive's cache without it; no effect elsewhere.
    connection.pragma_update(None, "fullfsync", true)?;
    // One plan per statement; otherwise SQLite compiles again for every value of a LIMIT.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // Keep statement journals in memory instead of in temporary files.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    if let Some(bytes) = config.max_bytes {
        let page = connection.pragma_query_value(None, "page_size", |row| row.unsigned(0))?;
        let pages = i64::try_from((bytes / page).max(1)).unwrap_or(i64::MAX);
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    // The writer decides when the write-ahead log is copied; SQLite's automatic checkpoints would stall it.
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
}

/// Sets mode 0600 by path, not through a descriptor: closing a descriptor would drop the locks that
/// other connections of this process hold on the file. The file is still empty, so nothing was
/// readable before, and the -wal and -shm files inherit its mode.
fn restrict_to_owner(config: &SqliteConfig) {
    let _ = std::fs::set_permissions(&config.path, Permissions::from_mode(0o600));
}

/// Tells a folder without write permission from a missing one, which SQLite reports alike.
fn open_error(config: &SqliteConfig, error: rusqlite::Error) -> StoreError {
    if error.sqlite_error_code() == Some(ErrorCode::CannotOpen)
        && let Err(Errno::ACCESS | Errno::ROFS) =
            rustix::fs::access(config.folder(), Access::WRITE_OK | Access::EXEC_OK)
    {
        let reason = "hapax may not write to the folder of the file".into();
        return StoreError::ReadOnly { reason };
    }
    store_error(error)
}
