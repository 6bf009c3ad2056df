//! The writer thread: runs all waiting calls in one transaction, commits once, then answers them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use hapax_core::{StoreError, StoreResult, Timestamp, WakeRegistry};
use tokio::sync::mpsc;

use crate::changes::{self, ChangeReader};
use crate::checkpoint::{self, CheckpointSignal, WalLength};
use crate::connect::{FileConnection, connect, reuse_or_connect};
use crate::error::{internal_error, store_error};
use crate::failpoint::{self, BEFORE_ANSWER, BEFORE_COMMIT, MID_BATCH};
use crate::files::StoreFiles;
use crate::migrate;
use crate::queued_call::QueuedCall;
use crate::reserve::{DiskReserve, no_room};
use crate::session::execute;

/// How many calls share one transaction; the rest go into the next one, which bounds the wait.
const MAX_CALLS: usize = 256;
/// After this many failed restarts of the WAL the next one is postponed.
const MAX_RESTART_TRIES: u32 = 16;
/// How many bytes of values share one transaction.
const MAX_BYTES: usize = 4 << 20;

/// How often the lock of the file is tried while another process has it. SQLite's own busy timeout waits up to 100 ms
/// between two tries, and a busy process has taken the lock again long before.
const LOCK_POLL: Duration = Duration::from_micros(250);
/// How long the lock stays free between two commits while another process writes, too, so that it gets its turn.
const TURN: Duration = Duration::from_micros(500);

/// The writer's page cache, large enough for the index pages of long queues and many logs. (SQLite
/// reads a negative number as KiB.)
const CACHE_KIB: i64 = -16_384;

/// A message to the writer thread.
pub(crate) enum WriterMessage {
    /// A call, and what the writer needs to know of it.
    Run { call: Box<dyn QueuedCall>, write: WriteInfo },
    /// Wake the waiters if another process has committed.
    CheckForeignCommits,
}

/// The size, the waiters and the kind of a call, which the writer decides by.
#[derive(Default)]
pub(crate) struct WriteInfo {
    /// The bytes of its values.
    pub(crate) bytes: usize,
    /// The digests of the keys to wake after the commit.
    pub(crate) wakes: Vec<u64>,
    pub(crate) room: RoomNeed,
}

/// Whether a call is served while the disk is full.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RoomNeed {
    /// The call adds data: refused.
    #[default]
    Grows,
    /// The call deletes, or changes a row in place: served from the reserve.
    Frees,
    /// A ping, which reports that there is no room.
    Asks,
}

impl WriteInfo {
    /// Of a call that works on a full disk.
    pub(crate) fn frees_room() -> Self {
        Self { room: RoomNeed::Frees, ..Self::default() }
    }
}

/// Counters of the writer, for `examine`.
#[derive(Debug, Default)]
pub(crate) struct WriterStats {
    /// Transactions that changed something.
    pub(crate) commits: AtomicU64,
    /// How often commits of other connections were noticed.
    pub(crate) foreign_commits: AtomicU64,
}

pub(crate) struct Writer {
    pub(crate) files: Arc<StoreFiles>,
    pub(crate) hub: WakeRegistry,
    pub(crate) stats: Arc<WriterStats>,
    pub(crate) checkpointer: SyncSender<CheckpointSignal>,
    pub(crate) connection: Option<FileConnection>,
    pub(crate) wal: Arc<WalLength>,
    /// The writer itself copies the WAL, between two commits, because this SQLite can lose a commit that
    /// restarts the WAL during a checkpoint by another connection.
    pub(crate) copies_wal: bool,
    /// The WAL length at which the writer restarts it.
    pub(crate) restart_at: usize,
    /// How many restarts failed in a row.
    pub(crate) failed_restarts: u32,
    /// The last `data_version`, which SQLite changes with every commit of another connection.
    pub(crate) data_version: Option<i64>,
    /// Another connection has committed since the last batch.
    pub(crate) takes_turns: bool,
    pub(crate) changes: ChangeReader,
    pub(crate) reserve: DiskReserve,
    /// How many pages were free below `max_bytes` when a call was refused for want of room.
    pub(crate) refused_at: Option<i64>,
    /// The time that was stored last, for the next boot.
    pub(crate) noted: Timestamp,
}

impl Writer {
    /// Serves calls until the last store handle is dropped and the queue is empty.
    pub(crate) fn run(mut self, mut queue: mpsc::Receiver<WriterMessage>) {
        while let Some(first) = queue.blocking_recv() {
            self.serve(take_batch(first, &mut queue));
            if self.takes_turns && !queue.is_empty() {
                thread::sleep(TURN);
            }
        }
    }

    fn serve(&mut self, mut batch: WriteBatch) {
        if !self.reserve.is_whole() {
            batch.keep_only(|room| room == RoomNeed::Frees, &no_room());
        } else if self.is_at_its_limit() {
            batch.keep_only(|room| room != RoomNeed::Asks, &no_room());
        }
        let mut done = self.commit(&mut batch.calls, batch.bytes, &batch.wakes);
        if let Err(error @ StoreError::Full { .. }) = &done {
            self.make_room();
            batch.keep_only(|room| room == RoomNeed::Frees, error);
            // Notes for other processes need room, too: their waiters find out at their next poll.
            done = self.commit(&mut batch.calls, batch.bytes, &[]);
        }
        let calls = batch.calls.into_iter().map(|(call, _)| call);
        match done {
            Ok(()) => {
                failpoint::hit(BEFORE_ANSWER);
                calls.for_each(QueuedCall::send_answer);
                for digest in batch.wakes {
                    self.hub.wake(digest);
                }
            }
            Err(error) => {
                tracing::debug!(error = %error, calls = calls.len(), "a batch was not written");
                calls.for_each(|call| call.fail(error.clone()));
            }
        }
        // On a full disk a WAL that is restarted again and again is all the room that there is.
        let full = !self.reserve.is_whole();
        self.maintain_wal(full);
    }

    /// Commits the whole batch, or nothing of it.
    fn commit(
        &mut self,
        calls: &mut [BatchedCall],
        bytes: usize,
        wakes: &[u64],
    ) -> StoreResult<()> {
        let files = self.files.clone();
        let connection =
            reuse_or_connect(self.connection.take(), &files, |_| self.connect_to_write())?;
        let before = connection.total_changes();
        let committed = self.transact(&connection, calls, wakes);
        let mut done = committed.map(|notes| self.changes.skip_own(notes));
        if done.is_ok() && connection.total_changes() > before {
            self.stats.commits.fetch_add(1, Ordering::Relaxed);
            self.wal.grow(estimated_pages(connection.total_changes() - before, bytes));
            // A commit into a WAL that was removed meanwhile is lost with this process.
            done = connection.check_files(&files);
        }
        let done = done.map_err(|error| files.remember(error));
        let mut errors =
            calls.iter().filter_map(|(call, _)| call.error()).chain(done.as_ref().err());
        if errors.all(keeps_connection) {
            self.connection = Some(connection);
        }
        done
    }

    /// Runs the calls in one transaction, which is rolled back if one of them fails half-way.
    fn transact(
        &mut self,
        connection: &FileConnection,
        calls: &mut [BatchedCall],
        wakes: &[u64],
    ) -> StoreResult<NoteRange> {
        if calls.is_empty() {
            return self.check_foreign_commits(connection).map(|()| None);
        }
        begin(connection, self.files.config.lock_timeout())?;
        let done = self.run_and_commit(connection, calls, wakes);
        if done.is_err() && !connection.is_autocommit() {
            let _ = execute(connection, "ROLLBACK", []);
        }
        done
    }

    fn run_and_commit(
        &mut self,
        connection: &FileConnection,
        calls: &mut [BatchedCall],
        wakes: &[u64],
    ) -> StoreResult<NoteRange> {
        // In the transaction of the calls it needs no snapshot of its own. While another process holds the lock, waiters are
        // woken later, at the next look.
        self.check_foreign_commits(connection)?;
        connection.sequence().reset();
        let before = connection.total_changes();
        run_all(connection, calls)?;
        let mut notes = None;
        if connection.total_changes() > before {
            connection.sequence().store(connection)?;
            connection.clock().note(connection, &mut self.noted)?;
            notes = changes::note(connection.session(), wakes)?;
        }
        failpoint::hit(BEFORE_COMMIT);
        // A transaction that wrote nothing costs no sync.
        execute(connection, "COMMIT", []).map(|_| notes)
    }

    /// After a call was refused for want of room: gives up the reserve, and restarts the WAL, so that
    /// the calls that free room have some. Notes how many pages were free, for the next ping.
    fn make_room(&mut self) {
        self.reserve.release();
        self.maintain_wal(true);
        self.refused_at = self.free_pages();
    }

    /// Whether a call was refused because of `max_bytes`, and no page was freed since.
    fn is_at_its_limit(&mut self) -> bool {
        self.refused_at =
            self.refused_at.filter(|then| self.free_pages().is_some_and(|n| n <= *then));
        self.refused_at.is_some()
    }

    /// How many more pages `max_bytes` allows; `None` without it.
    fn free_pages(&self) -> Option<i64> {
        let connection = self.connection.as_ref()?;
        self.files.config.max_bytes?;
        let pragma =
            |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).ok();
        Some(pragma("max_page_count")? - pragma("page_count")? + pragma("freelist_count")?)
    }

    fn connect_to_write(&mut self) -> StoreResult<FileConnection> {
        let connection = connect(&self.files)?;
        self.reserve.ensure();
        checkpoint::limit_wal_size(&connection)?;
        connection.pragma_update(None, "cache_size", CACHE_KIB).map_err(store_error)?;
        (self.data_version, self.changes) = (None, ChangeReader::default());
        Ok(connection)
    }

    /// Wakes the waiters of keys that another process has changed.
    fn check_foreign_commits(&mut self, connection: &FileConnection) -> StoreResult<()> {
        let version: i64 = connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut query| query.query_row([], |row| row.get(0)))
            .map_err(store_error)?;
        self.takes_turns = self.data_version.is_some_and(|before| before != version);
        if self.data_version == Some(version) {
            return Ok(());
        }
        migrate::check_version(connection)?;
        self.changes.wake(connection.session(), &self.hub)?;
        let before = self.data_version.replace(version);
        self.stats.foreign_commits.fetch_add(u64::from(before.is_some()), Ordering::Relaxed);
        Ok(())
    }

    /// Called between two transactions. On a full disk a restarted WAL is the room that deletes need.
    fn maintain_wal(&mut self, full: bool) {
        if (full || self.wal.needs_restart(self.restart_at))
            && let Some(connection) = &self.connection
        {
            let timeout = self.files.config.lock_timeout();
            if checkpoint::restart_wal(connection, timeout, &self.wal) {
                (self.restart_at, self.failed_restarts) = (checkpoint::RESTART_PAGES, 0);
            } else {
                // A running checkpoint is out of the way soon. A long read of another process is not:
                // postpone, so that not every batch tries again.
                self.failed_restarts += 1;
                if self.failed_restarts.is_multiple_of(MAX_RESTART_TRIES) {
                    self.restart_at = self.wal.pages() + checkpoint::RESTART_PAGES;
                }
            }
        } else if self.wal.needs_checkpoint() {
            match &self.connection {
                Some(connection) if self.copies_wal => {
                    let _ = checkpoint::copy_wal(connection, &self.wal);
                }
                // A full channel already holds a signal.
                _ => drop(self.checkpointer.try_send(CheckpointSignal::GrownWal)),
            }
        }
    }
}

/// The first and the last number of a commit's notes for other processes.
type NoteRange = Option<(i64, i64)>;

type BatchedCall = (Box<dyn QueuedCall>, RoomNeed);

struct WriteBatch {
    calls: Vec<BatchedCall>,
    /// The bytes of their values.
    bytes: usize,
    wakes: Vec<u64>,
}

impl WriteBatch {
    /// Fails all calls but those that are served.
    fn keep_only(&mut self, is_served: impl Fn(RoomNeed) -> bool, error: &StoreError) {
        for (call, _) in self.calls.extract_if(.., |(_, room)| !is_served(*room)) {
            call.fail(error.clone());
        }
    }
}

/// Takes the waiting calls, up to [`MAX_CALLS`] and [`MAX_BYTES`].
fn take_batch(first: WriterMessage, queue: &mut mpsc::Receiver<WriterMessage>) -> WriteBatch {
    let mut batch = WriteBatch { calls: Vec::new(), bytes: 0, wakes: Vec::new() };
    let mut next = Some(first);
    while let Some(message) = next.take() {
        if let WriterMessage::Run { call, write } = message {
            batch.calls.push((call, write.room));
            batch.wakes.extend(write.wakes);
            batch.bytes += write.bytes;
        }
        if batch.calls.len() < MAX_CALLS && batch.bytes < MAX_BYTES {
            next = queue.try_recv().ok();
        }
    }
    batch
}

/// Begins a transaction as soon as no other process has one, within the timeout.
fn begin(connection: &FileConnection, lock_timeout: Duration) -> StoreResult<()> {
    let since = Instant::now();
    connection.busy_timeout(Duration::ZERO).map_err(store_error)?;
    let begun = loop {
        match execute(connection, "BEGIN IMMEDIATE", []) {
            Err(StoreError::Locked { .. }) if since.elapsed() < lock_timeout => {
                thread::sleep(LOCK_POLL);
            }
            begun => break begun.map(|_| ()),
        }
    };
    connection.busy_timeout(lock_timeout).map_err(store_error)?;
    begun
}

fn run_all(connection: &FileConnection, calls: &mut [BatchedCall]) -> StoreResult<()> {
    migrate::check_version(connection)?;
    for (call, _) in calls {
        // The caller's timeout has passed, and the caller was answered with it.
        if call.is_abandoned() {
            continue;
        }
        let before = connection.total_changes();
        call.run(connection.session());
        failpoint::hit(MID_BATCH);
        if connection.is_autocommit() {
            // SQLite rolled back the whole transaction by itself, as it does on a full disk.
            let error = call.error().cloned();
            return Err(error.unwrap_or_else(|| internal_error("a transaction was lost")));
        }
        // A call that failed after its first write leaves a partial write: roll back the whole batch.
        // That is rare, and a savepoint per call would cost every call. Without room the calls that
        // free some run again alone.
        if let Some(error) = call.error()
            && (connection.total_changes() != before || matches!(error, StoreError::Full { .. }))
        {
            return Err(error.clone());
        }
    }
    Ok(())
}

/// About how many pages a commit adds to the WAL. A commit of one call was measured to add 6 to 8, one of
/// 250 rows about 50. The next checkpoint corrects the sum.
fn estimated_pages(rows: u64, bytes: usize) -> usize {
    6 + usize::try_from(rows).unwrap_or(0) / 4 + bytes / 4096
}

/// After any other error the next batch opens a new connection.
fn keeps_connection(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Locked { .. } | StoreError::Full { .. } | StoreError::Corrupt { .. }
    )
}
