use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use async_trait::async_trait;
use hapax_core::{Clock, Finding, Key, Store, StoreError, WakeRegistry, Watch, with_timeout};
use rusqlite::Connection;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::checkpoint::{Duty, Keeper, RESTART_PAGES};
use crate::connect::Session;
use crate::queued_call::{Job, call};
use crate::writer::{Message, Tally, Writer};
use crate::{Config, examine, reader, row, sweep};

/// Threads that read.
const READERS: usize = 2;

/// hapax on a SQLite file. Clones share one writer; other handles and other processes may have
/// the same file open at the same time.
///
/// ```
/// use hapax_core::{ClaimRequest, Claimed, Claims, Key, Tenant};
/// use hapax_sqlite::SqliteStore;
/// use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("hapax.db");
/// let store = SqliteStore::open(path)?;
/// let key = Key::lock(&Tenant::default(), "processing:user:U1")?;
/// let answer = store.claim(&key, &ClaimRequest::new(Duration::from_secs(5))).await?;
/// assert!(matches!(answer, Claimed::Granted { .. }));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqliteStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) hub: WakeRegistry,
    tally: Arc<Tally>,
    writer: mpsc::Sender<Message>,
    readers: mpsc::Sender<Box<dyn Job>>,
    keeper: SyncSender<Duty>,
}

impl SqliteStore {
    /// Opens or creates the file.
    ///
    /// A file that is locked, read-only or on a full disk just now does not keep it from opening:
    /// the calls say so until it is over. What will not pass by itself is an error here.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`]: a path that names no file in an existing folder, a file that
    /// is no database, tables of a newer hapax.
    pub fn open(config: impl Into<Config>) -> Result<Self, StoreError> {
        let config = config.into();
        config.check()?;
        let first = match reader::open(&config) {
            Ok(connection) => Some(connection).filter(Session::is_lasting),
            Err(error) if error.is_transient() => {
                tracing::warn!(error = %error, "the store cannot be used yet");
                None
            }
            Err(error) => return Err(error),
        };
        Self::start(config, first).map_err(StoreError::internal)
    }

    fn start(config: Config, mut first: Option<Session>) -> std::io::Result<Self> {
        let (writer, written) = mpsc::channel(config.queue);
        let (readers, read) = mpsc::channel(config.queue);
        let (keeper, duties) = sync_channel(1);
        let (hub, tally) = (WakeRegistry::default(), Arc::<Tally>::default());

        let thread = Writer {
            config: config.clone(),
            hub: hub.clone(),
            tally: tally.clone(),
            keeper: keeper.clone(),
            connection: None,
            pages: Arc::default(),
            restart_at: RESTART_PAGES,
            in_vain: 0,
            seen: None,
        };
        spawn("hapax-writer", move || thread.run(written))?;

        let read = Arc::new(Mutex::new(read));
        for _ in 0..READERS {
            let (config, queue, connection) = (config.clone(), read.clone(), first.take());
            spawn("hapax-reader", move || reader::run(&config, &queue, connection))?;
        }

        let (config_, hub_, weak) = (config.clone(), hub.clone(), writer.downgrade());
        let thread = Keeper { config: config_, hub: hub_, writer: weak };
        spawn("hapax-keeper", move || thread.run(duties))?;

        Ok(Self(Arc::new(Inner { config, hub, tally, writer, readers, keeper })))
    }

    /// How many transactions this handle and its clones have committed. Many calls share one.
    pub fn commits(&self) -> u64 {
        self.0.tally.commits.load(Ordering::Relaxed)
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.0.config.clock.clone()
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        with_timeout(self.0.config.limit, call(&self.0.readers, |job| job, work)).await
    }

    pub(crate) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        wakes: Vec<u64>,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let message = |job| Message::Do { job, bytes, wakes };
        with_timeout(self.0.config.limit, call(&self.0.writer, message, work)).await
    }

    /// Registers for hints: from this process's writer at once, from other processes by the keeper.
    pub(crate) fn register(&self, key: &Key) -> Watch {
        let watch = self.0.hub.watch(key);
        // Full means that the keeper is about to look whether somebody waits.
        let _ = self.0.keeper.try_send(Duty::Watch);
        watch
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("config", &self.0.config).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    /// Really writes: a disk that is full or read-only shows itself in no other way.
    async fn ping(&self) -> Result<(), StoreError> {
        self.write(0, Vec::new(), row::probe).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        let (config, tally) = (self.0.config.clone(), self.0.tally.clone());
        self.read(move |c| examine::examine(c, &config, &tally)).await
    }

    /// In several transactions, so that others get in between; large jobs count once for each piece.
    async fn sweep(&self, at_most: u32) -> Result<u64, StoreError> {
        let (begun, mut count) = (Instant::now(), 0);
        loop {
            let (clock, left) = (self.clock(), u64::from(at_most) - count);
            let step = move |c: &Connection| sweep::sweep(c, clock.now(), left);
            let swept = self.write(0, Vec::new(), step).await?;
            count += swept.count;
            if !swept.more || count >= at_most.into() || begun.elapsed() > self.0.config.limit / 2 {
                return Ok(count);
            }
        }
    }
}
