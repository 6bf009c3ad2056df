use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{
    Ask, Claimed, Claims, Clock, Deleted, Expect, Finding, GiveBack, Hub, Key, List, Oversight,
    Page, Put, Record, Records, Step, Store, StoreError, Token, View, Watch, limited,
};
use rusqlite::Connection;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::connect::Session;
use crate::job::{Job, call};
use crate::keeper::{Duty, Keeper, RESTART_PAGES};
use crate::writer::{Message, Tally, Writer};
use crate::{Config, examine, oversight, reader, row, sweep, tx};

/// Threads that read.
const READERS: usize = 2;

/// hapax on a SQLite file. Clones share one writer; other handles and other processes may have
/// the same file open at the same time.
///
/// ```
/// use hapax_core::{Ask, Claimed, Claims, Key, Tenant};
/// use hapax_sqlite::SqliteStore;
/// use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("hapax.db");
/// let store = SqliteStore::open(path)?;
/// let key = Key::lock(&Tenant::default(), "processing:user:U1")?;
/// let answer = store.claim(&key, &Ask::new(Duration::from_secs(5))).await?;
/// assert!(matches!(answer, Claimed::Granted { .. }));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqliteStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) hub: Hub,
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
            Err(error) if error.is_passing() => {
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
        let (hub, tally) = (Hub::default(), Arc::<Tally>::default());

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
        limited(self.0.config.limit, call(&self.0.readers, |job| job, work)).await
    }

    pub(crate) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        wakes: Vec<u64>,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let message = |job| Message::Do { job, bytes, wakes };
        limited(self.0.config.limit, call(&self.0.writer, message, work)).await
    }

    /// Registers for hints: from this process's writer at once, from other processes by the keeper.
    pub(crate) fn register(&self, key: &Key) -> Watch {
        let watch = self.0.hub.watch(key);
        // Full means that the keeper is about to look whether somebody waits.
        let _ = self.0.keeper.try_send(Duty::Watch);
        watch
    }

    /// What a reader can answer, it answers, even while others hold the write lock; the writer
    /// decides the rest anew.
    async fn ask(&self, key: &Key, ask: &Ask) -> Result<Claimed, StoreError> {
        let (clock, key_, ask_) = (self.clock(), key.clone(), ask.clone());
        let known = self.read(move |c| tx::glance(c, &*clock, &key_, &ask_)).await?;
        if let Some(answer) = known {
            return Ok(answer);
        }
        let (clock, key, ask) = (self.clock(), key.clone(), ask.clone());
        self.write(0, Vec::new(), move |c| tx::claim(c, &*clock, &key, &ask)).await
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
impl Claims for SqliteStore {
    async fn claim(&self, key: &Key, ask: &Ask) -> Result<Claimed, StoreError> {
        // Two threads, one time limit.
        limited(self.0.config.limit, self.ask(key, ask)).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(0, Vec::new(), move |c| tx::extend(c, &*clock, &key, &token, lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        let (size, wakes) = (value.len(), vec![key.digest()]);
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(size, wakes, move |c| tx::settle(c, &*clock, &key, &token, &value)).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        let wakes = vec![key.digest()];
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(0, wakes, move |c| tx::give_back(c, &*clock, &key, &token, how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<View>, StoreError> {
        let (clock, key) = (self.clock(), key.clone());
        self.read(move |c| tx::look(c, &*clock, &key)).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.register(key)
    }
}

#[async_trait]
impl Records for SqliteStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let (clock, key) = (self.clock(), key.clone());
        self.read(move |c| tx::get(c, &*clock, &key)).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let (clock, key, expect) = (self.clock(), key.clone(), expect.clone());
        self.write(value.len(), Vec::new(), move |c| {
            tx::put(c, &*clock, &key, &value, &expect, ttl)
        })
        .await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let (clock, key, expect) = (self.clock(), key.clone(), expect.clone());
        self.write(0, Vec::new(), move |c| tx::delete(c, &*clock, &key, &expect)).await
    }
}

#[async_trait]
impl Oversight for SqliteStore {
    async fn list(&self, list: &List) -> Result<Page, StoreError> {
        let (clock, list) = (self.clock(), list.clone());
        self.read(move |c| oversight::list(c, &*clock, &list)).await
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
