use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use async_trait::async_trait;
use hapax_core::{
    Finding, Key, OpenMode, Store, StoreError, StoreResult, Swept, Timestamp, WakeRegistry, Watch,
    with_timeout,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::changes::ChangeReader;
use crate::checkpoint::{CheckpointSignal, Checkpointer, RESTART_PAGES, WalLength};
use crate::connect::FileConnection;
use crate::examine::has_wal_reset_bug;
use crate::files::StoreFiles;
use crate::queued_call::{QueuedCall, TypedCall, run_on_thread};
use crate::reader::{AbandonOnDrop, AbandonedFlag, ReadQueue, RunningCall};
use crate::reserve::DiskReserve;
use crate::session::{Session, write_probe};
use crate::writer::{RoomNeed, WriteInfo, Writer, WriterMessage, WriterStats};
use crate::{SqliteConfig, examine, reader, sweep};

/// Number of reader threads.
const READERS: usize = 2;

/// A store on a SQLite file. Clones share one writer thread; other handles and other processes may
/// have the same file open at the same time.
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
pub struct SqliteStore(pub(crate) Arc<SqliteInner>);

pub(crate) struct SqliteInner {
    pub(crate) config: SqliteConfig,
    pub(crate) hub: WakeRegistry,
    stats: Arc<WriterStats>,
    pub(crate) writer: mpsc::Sender<WriterMessage>,
    readers: [ReadQueue; READERS],
    operators: mpsc::Sender<Box<dyn QueuedCall>>,
    /// The operator's call that runs now.
    running: RunningCall,
    checkpointer: SyncSender<CheckpointSignal>,
}

impl SqliteStore {
    /// Opens or creates the file.
    ///
    /// A file that is locked, read-only or on a full disk right now still opens: the calls return
    /// that error until it is resolved. Errors that no retry can resolve are returned here.
    ///
    /// # Errors
    /// [`StoreError::Incompatible`]: a path that names no file in an existing folder, a file that
    /// is not a database, tables written by a newer hapax.
    pub fn open(config: impl Into<SqliteConfig>) -> StoreResult<Self> {
        let config = config.into();
        config.validate()?;
        let files = Arc::new(StoreFiles::new(config.clone()));
        let first = match reader::open(&files) {
            Ok(connection) => Some(connection).filter(FileConnection::is_reusable),
            Err(error) if error.is_transient() => {
                tracing::warn!(error = %error, "the store cannot be used yet");
                None
            }
            Err(error) => return Err(error),
        };
        Self::start(config, files, first).map_err(StoreError::internal)
    }

    fn start(
        config: SqliteConfig,
        files: Arc<StoreFiles>,
        mut first: Option<FileConnection>,
    ) -> std::io::Result<Self> {
        let (writer, written) = mpsc::channel(config.max_waiting_calls);
        let (checkpointer, signals) = sync_channel(1);
        let (hub, stats) = (WakeRegistry::default(), Arc::<WriterStats>::default());
        let wal = Arc::<WalLength>::default();

        let thread = Writer {
            reserve: DiskReserve::new(&config),
            files: files.clone(),
            hub: hub.clone(),
            stats: stats.clone(),
            checkpointer: checkpointer.clone(),
            connection: None,
            wal: wal.clone(),
            copies_wal: has_wal_reset_bug(rusqlite::version_number()),
            restart_at: RESTART_PAGES,
            failed_restarts: 0,
            data_version: None,
            takes_turns: false,
            changes: ChangeReader::default(),
            refused_at: None,
            noted: Timestamp(0),
        };
        spawn("hapax-writer", move || thread.run(written))?;

        let mut reader_threads = Vec::new();
        let readers = std::array::from_fn(|_| {
            let (queue, thread) = reader::queue(config.max_waiting_calls);
            reader_threads.push(thread);
            queue
        });
        for thread in reader_threads {
            let (files, connection) = (files.clone(), first.take());
            spawn("hapax-reader", move || thread.run(&files, connection))?;
        }

        let (operators, calls) = mpsc::channel(config.max_waiting_calls);
        let running = RunningCall::default();
        let (files_, running_) = (files.clone(), running.clone());
        spawn("hapax-operator", move || reader::run_for_operators(&files_, calls, &running_))?;

        let (writer_, hub_) = (writer.downgrade(), hub.clone());
        let thread = Checkpointer { files, hub: hub_, wal, writer: writer_ };
        spawn("hapax-checkpoint", move || thread.run(signals))?;

        let inner =
            SqliteInner { config, hub, stats, writer, readers, operators, running, checkpointer };
        Ok(Self(Arc::new(inner)))
    }

    /// How many transactions this handle and its clones have committed; many calls share one.
    pub fn commits(&self) -> u64 {
        self.0.stats.commits.load(Ordering::Relaxed)
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnMut(Session<'_>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let message = |caller| Box::new(TypedCall::new(work, caller)) as Box<dyn QueuedCall>;
        with_timeout(self.0.config.timeout, run_on_thread(self.read_queue(), message)).await
    }

    /// The queue of the first reader, unless the next one has less to do.
    pub(crate) fn read_queue(&self) -> &mpsc::Sender<Box<dyn QueuedCall>> {
        let readers = &self.0.readers;
        readers.iter().min_by_key(|queue| queue.load()).unwrap_or(&readers[0]).sender()
    }

    /// [`Self::read`] on the operators' own thread: lists and counts may take long, and claims must not
    /// wait for them. A read that outlasts its timeout is ended.
    pub(crate) async fn read_as_operator<T: Send + 'static>(
        &self,
        mut work: impl FnMut(Session<'_>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let (flag, running) = (AbandonedFlag::default(), self.0.running.clone());
        let _abandon = AbandonOnDrop(flag.clone());
        let work = move |session: Session<'_>| {
            running.begin(&flag);
            work(session)
        };
        let message = |caller| Box::new(TypedCall::new(work, caller)) as Box<dyn QueuedCall>;
        with_timeout(self.0.config.timeout, run_on_thread(&self.0.operators, message)).await
    }

    pub(crate) async fn write<T: Send + 'static>(
        &self,
        write: WriteInfo,
        work: impl FnMut(Session<'_>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let message =
            |caller| WriterMessage::Run { call: Box::new(TypedCall::new(work, caller)), write };
        with_timeout(self.0.config.timeout, run_on_thread(&self.0.writer, message)).await
    }

    /// Registers a waiter. Commits of this process wake it at once, those of other processes when
    /// the writer notices them.
    pub(crate) fn watch_key(&self, key: &Key) -> Watch {
        let watch = self.0.hub.watch(key);
        // A full channel already holds a signal.
        let _ = self.0.checkpointer.try_send(CheckpointSignal::NewWaiter);
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

    /// Writes a row, because only a write shows that the disk is read-only. A full disk is reported
    /// as long as other writes are refused.
    async fn ping(&self) -> StoreResult<()> {
        if self.0.config.mode == OpenMode::ReadOnly {
            return self.read(|_| Ok(())).await;
        }
        self.write(WriteInfo { room: RoomNeed::Asks, ..WriteInfo::default() }, write_probe).await
    }

    async fn examine(&self) -> StoreResult<Vec<Finding>> {
        let (config, stats) = (self.0.config.clone(), self.0.stats.clone());
        self.read_as_operator(move |session| examine::examine(session.connection, &config, &stats))
            .await
    }

    /// Runs several short transactions, so that other calls get in between. A large job counts once
    /// for each piece.
    async fn sweep(&self, at_most: u32) -> StoreResult<Swept> {
        let (begun, mut count) = (Instant::now(), 0);
        loop {
            let left = u64::from(at_most) - count;
            let step = move |session: Session<'_>| sweep::sweep(session, left);
            let swept = match self.write(WriteInfo::frees_room(), step).await {
                // Report the rows that were deleted; the next call meets the same error.
                Err(_) if count > 0 => return Ok(Swept { count, more: true }),
                swept => swept?,
            };
            count += swept.count;
            if !swept.more || count >= at_most.into() || begun.elapsed() > self.0.config.timeout / 2
            {
                return Ok(Swept { count, more: swept.more });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A slow read, perhaps of a long log, once had up to 15 calls behind it beside a reader that had nothing to do.
    #[tokio::test(flavor = "multi_thread")]
    async fn reads_do_not_wait_behind_a_slow_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hapax.db");
        let config = SqliteConfig::new(path).timeout(Duration::from_secs(60));
        let store = SqliteStore::open(config).unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let ends = std::sync::Mutex::new(ends);
        let slow = store.clone();
        let slow = tokio::spawn(async move {
            let wait = move |_: Session<'_>| {
                let _ = begun.send(());
                let _ = ends.lock().unwrap().recv();
                Ok(())
            };
            slow.read(wait).await
        });
        begins.recv().unwrap();
        // From then on the batch counts as slow.
        thread::sleep(Duration::from_millis(5));
        for _ in 0..8 {
            store.read(|_| Ok(())).await.unwrap();
        }
        assert!(!slow.is_finished());
        end.send(()).unwrap();
        slow.await.unwrap().unwrap();
    }

    /// A query that never ends keeps the thread for operators for as long as it runs.
    #[tokio::test]
    async fn fault_29_operators_read_is_ended_with_its_timeout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hapax.db");
        let config = SqliteConfig::new(path).timeout(Duration::from_secs(1));
        let store = SqliteStore::open(config).unwrap();
        let endless = |session: Session<'_>| {
            let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                       SELECT count(*) FROM n";
            session.one(sql, [], |row| row.get::<_, i64>(0))
        };
        let answer = store.read_as_operator(endless).await;
        assert!(matches!(answer, Err(StoreError::Timeout { .. })), "{answer:?}");
        let mut tries = 0;
        while let Err(error) = store.examine().await {
            tries += 1;
            assert!(tries < 60, "the endless read still runs: {error:?}");
        }
    }
}
