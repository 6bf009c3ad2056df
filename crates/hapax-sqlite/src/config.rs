use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::log::PARTITIONS;
use hapax_core::{Clock, MonotonicClock, OpenMode, StoreError, StoreResult};

use crate::store_clock::{TimeSource, machine_time};

/// How a [`SqliteStore`](crate::SqliteStore) is opened.
///
/// ```
/// use hapax_sqlite::SqliteConfig;
/// use std::time::Duration;
/// let config = SqliteConfig::new("hapax.db").timeout(Duration::from_millis(500)).max_waiting_calls(256);
/// ```
#[derive(Clone, Debug)]
pub struct SqliteConfig {
    pub(crate) path: PathBuf,
    /// A clock of the user's choice, instead of the time since boot.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) time: Arc<dyn TimeSource>,
    pub(crate) timeout: Duration,
    pub(crate) max_waiting_calls: usize,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) reserve: u64,
    pub(crate) partitions: u16,
    pub(crate) mode: OpenMode,
}

impl SqliteConfig {
    /// The file at `path`, with the machine's time since boot, a timeout of 2 s and 1024 waiting calls.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            clock: None,
            time: machine_time().clone(),
            timeout: Duration::from_secs(2),
            max_waiting_calls: 1024,
            max_bytes: None,
            reserve: 8 << 20,
            partitions: PARTITIONS,
            mode: OpenMode::Migrate,
        }
    }

    hapax_core::builder_methods! {
        /// The longest that one call may take, from the wait for a thread to the answer.
        timeout: Duration;
        /// How many bytes of the disk are kept for deletes and sweeps, in a file `…-reserve` beside the
        /// database; 8 MiB by default, 0 for none. When the disk is full that file is removed, and until
        /// it can be made again all calls that need room are answered with [`StoreError::Full`]. A file
        /// system without `fallocate` (ZFS), or that copies on write, reserves nothing.
        reserve: u64;
        /// How much opening the file may change.
        mode: OpenMode;
    }

    /// Measures leases and retentions by this clock instead of the machine's time since boot. All that
    /// have the file open must use the same clock. Where it goes back, the time of the stores that are
    /// opened with this configuration stands still.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(Arc::new(MonotonicClock::new(clock)));
        self
    }

    /// How many calls are queued for the writer thread, and as many for each of the two readers. Further
    /// calls wait for room until their timeout.
    #[must_use]
    pub fn max_waiting_calls(mut self, calls: usize) -> Self {
        self.max_waiting_calls = calls.max(1);
        self
    }

    /// Answers [`StoreError::Full`] rather than let the database file outgrow this size. (The
    /// write-ahead log beside it comes on top; see `examine`.)
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Divides the logs into this many virtual partitions. The number is stored at the first
    /// opening; opening the file with another number is refused.
    #[must_use]
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions.max(1);
        self
    }

    /// How long to wait for another process's write lock. A call that arrives while the writer waits
    /// sees the rest of that wait and then a wait of its own: both must fit into the timeout.
    pub(crate) fn lock_timeout(&self) -> Duration {
        // SQLite counts milliseconds in 31 bits.
        (self.timeout / 5 * 2).min(Duration::from_secs(3600))
    }

    /// Refuses paths that can never work, so that `open` fails instead of retrying.
    pub(crate) fn validate(&self) -> StoreResult<()> {
        let refuse = |reason: &str| Err(StoreError::Incompatible { reason: reason.into() });
        if self.path.as_os_str().is_empty() || self.path.as_os_str() == ":memory:" {
            return refuse("SQLite needs a file here; for a store without one use `memory:`");
        }
        if self.path.is_dir() {
            return refuse("the path is a folder; name a file in it");
        }
        if !self.folder().is_dir() {
            return refuse("the folder of the file does not exist; create it first");
        }
        Ok(())
    }

    pub(crate) fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }
}

impl From<&str> for SqliteConfig {
    fn from(path: &str) -> Self {
        Self::new(path)
    }
}

impl From<String> for SqliteConfig {
    fn from(path: String) -> Self {
        Self::new(path)
    }
}

impl From<&Path> for SqliteConfig {
    fn from(path: &Path) -> Self {
        Self::new(path)
    }
}

impl From<PathBuf> for SqliteConfig {
    fn from(path: PathBuf) -> Self {
        Self::new(path)
    }
}
