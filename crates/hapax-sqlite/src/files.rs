//! The files of a store: the database, its write-ahead log (WAL) and its shared memory. Each is known
//! by device and inode, so that a store notices when one is removed or replaced under it.
//!
//! SQLite itself would go on: it writes to the file that it has open, whose name leads elsewhere by
//! now, and those writes are lost with the process. A new connection would begin an empty store, whose
//! fences start again at 1. While a connection is open no program may remove its WAL, so every
//! difference is somebody's mistake, and only a restart (somebody's decision) resolves it.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hapax_core::{StoreError, StoreResult};

use crate::SqliteConfig;

/// Device and inode of a file.
type FileId = (u64, u64);

/// The files that a connection has open: database, WAL, shared memory.
pub(crate) type OpenFiles = [Option<FileId>; 3];

/// The files of one store, shared by its threads.
#[derive(Debug)]
pub(crate) struct StoreFiles {
    pub(crate) config: SqliteConfig,
    /// The database that the first connection of this store has opened.
    database: OnceLock<FileId>,
    /// The paths of the files, from the first connection on.
    paths: OnceLock<[PathBuf; 3]>,
    /// Why the store is refused, once a file was found removed or replaced.
    replaced: OnceLock<String>,
}

impl StoreFiles {
    pub(crate) fn new(config: SqliteConfig) -> Self {
        let (database, paths, replaced) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { config, database, paths, replaced }
    }

    /// Whether a connection of this store has been open before: its tables must be there.
    pub(crate) fn are_known(&self) -> bool {
        self.database.get().is_some()
    }

    /// The error of a store whose files were found removed or replaced before.
    pub(crate) fn check(&self) -> StoreResult<()> {
        match self.replaced.get() {
            Some(reason) => Err(StoreError::Replaced { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Before a connection is opened: the database must be the one that was opened first.
    pub(crate) fn check_database(&self) -> StoreResult<()> {
        self.check()?;
        match self.database.get() {
            Some(database) => self.compare(&[Some(*database), None, None]),
            None => refuse_orphaned_wal(&self.config.path),
        }
    }

    /// The files that a new connection has open by now.
    pub(crate) fn note_open(&self) -> StoreResult<OpenFiles> {
        let paths = self.paths.get_or_init(|| {
            // Not resolved: a symbolic link to the database may be changed, too.
            let database = self.config.path.clone();
            [database, beside(&self.config.path, "-wal"), beside(&self.config.path, "-shm")]
        });
        let mut open = OpenFiles::default();
        for (open, path) in open.iter_mut().zip(paths) {
            *open = identity(path).map_err(StoreError::unavailable)?;
        }
        let Some(database) = open[0] else {
            return Err(self.refuse(&format!("{} was removed", file_name(&paths[0]))));
        };
        self.database.get_or_init(|| database);
        self.check_database()?;
        Ok(open)
    }

    /// Compares the files that a connection has open with those that their names lead to. A file that
    /// did not exist when the connection was opened (a read-only one has no WAL) may appear.
    pub(crate) fn compare(&self, open: &OpenFiles) -> StoreResult<()> {
        for (path, open) in self.paths.get().into_iter().flatten().zip(open) {
            // Where the folder cannot be read nothing is known; the call itself will show it.
            let Ok(now) = identity(path) else { continue };
            if open.is_some() && now != *open {
                let happened = if now.is_none() { "removed" } else { "replaced" };
                return Err(self.refuse(&format!("{} was {happened}", file_name(path))));
            }
        }
        self.check()
    }

    /// Refuses the store from now on, if the error says that its files or tables were replaced.
    pub(crate) fn remember(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Replaced { reason } => self.refuse(&reason),
            error => error,
        }
    }

    fn refuse(&self, found: &str) -> StoreError {
        let reason = self.replaced.get_or_init(|| {
            tracing::error!("{found} while in use: the store is refused until a restart");
            found.to_owned()
        });
        StoreError::Replaced { reason: reason.clone() }
    }
}

fn identity(path: &Path) -> std::io::Result<Option<FileId>> {
    match std::fs::metadata(path) {
        Ok(file) => Ok(Some((file.dev(), file.ino()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name without its folder: enough to find the file, and safe to show.
fn file_name(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// A file beside the database. SQLite follows symbolic links before it adds a suffix.
pub(crate) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let database = std::fs::canonicalize(database).unwrap_or_else(|_| database.into());
    let mut name = database.into_os_string();
    name.push(suffix);
    name.into()
}

/// Refuses to begin a new database beside the WAL of a lost one: SQLite would delete that WAL, and
/// with it acknowledged writes. The WAL is looked at first, because it is made after its database.
fn refuse_orphaned_wal(database: &Path) -> StoreResult<()> {
    let wal = beside(database, "-wal");
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    if length(&wal) > 0 && length(database) == 0 {
        let name = file_name(&wal);
        let reason = format!(
            "{name} is there, and its database is missing or empty; restore the database, or remove \
             {name} to begin anew"
        );
        return Err(StoreError::Incompatible { reason });
    }
    Ok(())
}
