use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::log::PARTITIONS;
use hapax_core::{Clock, StoreError, SystemClock};

/// How a [`SqliteStore`](crate::SqliteStore) is opened.
///
/// ```
/// use hapax_sqlite::Config;
/// use std::time::Duration;
/// let config = Config::new("hapax.db").limit(Duration::from_millis(500)).queue(256);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) path: PathBuf,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limit: Duration,
    pub(crate) queue: usize,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) partitions: u16,
}

impl Config {
    /// The file at `path`, the machine's clock, 2 s for a call, 1024 calls in the queue.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            clock: Arc::new(SystemClock),
            limit: Duration::from_secs(2),
            queue: 1024,
            max_bytes: None,
            partitions: PARTITIONS,
        }
    }

    /// Measures leases and retentions by this clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Ends every call after this time, with an answer or an error.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Lets so many calls wait for the writer, and as many for the readers; further ones wait
    /// outside until their time is up.
    #[must_use]
    pub fn queue(mut self, calls: usize) -> Self {
        self.queue = calls.max(1);
        self
    }

    /// Answers [`StoreError::Full`] rather than let the database file outgrow this size. (The
    /// write-ahead log beside it comes on top; see `examine`.)
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Divides the logs into this many virtual partitions. The number is stored with the first
    /// opening, and a file that holds another one is refused.
    #[must_use]
    pub fn partitions(mut self, partitions: u16) -> Self {
        self.partitions = partitions.max(1);
        self
    }

    /// How long to wait for another process's write lock. A call that comes while the writer is
    /// waiting sees the rest of that wait and then one of its own: both must fit into the limit.
    pub(crate) fn patience(&self) -> Duration {
        // The engine counts in 31 bits of milliseconds.
        (self.limit / 5 * 2).min(Duration::from_secs(3600))
    }

    /// What no waiting can mend.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
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

impl From<&str> for Config {
    fn from(path: &str) -> Self {
        Self::new(path)
    }
}

impl From<String> for Config {
    fn from(path: String) -> Self {
        Self::new(path)
    }
}

impl From<&Path> for Config {
    fn from(path: &Path) -> Self {
        Self::new(path)
    }
}

impl From<PathBuf> for Config {
    fn from(path: PathBuf) -> Self {
        Self::new(path)
    }
}
