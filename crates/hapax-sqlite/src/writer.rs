//! The one thread that writes: it takes everything that waits, runs it in one transaction, commits
//! once, and only then answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;

use hapax_core::{StoreError, WakeRegistry};
use rusqlite::Connection;
use tokio::sync::mpsc;

use crate::checkpoint::{self, Duty};
use crate::connect::{Session, connect};
use crate::error::{bug, fault, twin};
use crate::failpoint::{self, BEFORE_ANSWER, BEFORE_COMMIT, MID_BATCH};
use crate::queued_call::Job;
use crate::{Config, migrate};

/// So many calls in one transaction; the others wait for the next, so that none waits for long.
const MAX_JOBS: usize = 256;
/// So many batches in a row try to begin the log anew before that is put off.
const TRIES: u32 = 16;
/// So many bytes of values in one transaction.
const MAX_BYTES: usize = 4 << 20;

/// What the writer keeps of the file: the pages of a long queue's and of many logs' indexes are met
/// again and again. (Negative: the engine's word for KiB.)
const CACHE_KIB: i64 = -16_384;

/// What reaches the writer.
pub(crate) enum Message {
    /// A call, how many bytes it carries, and whom to wake when it is committed.
    Do { job: Box<dyn Job>, bytes: usize, wakes: Vec<u64> },
    /// Look whether another process has written.
    Look,
}

/// What others may know about the writer.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Transactions that changed something.
    pub(crate) commits: AtomicU64,
    /// How often somebody else's commits were noticed.
    pub(crate) foreign: AtomicU64,
}

pub(crate) struct Writer {
    pub(crate) config: Config,
    pub(crate) hub: WakeRegistry,
    pub(crate) tally: Arc<Tally>,
    pub(crate) keeper: SyncSender<Duty>,
    pub(crate) connection: Option<Session>,
    /// Pages in the write-ahead log after the last commit.
    pub(crate) pages: Arc<AtomicUsize>,
    /// At so many pages the log is begun anew.
    pub(crate) restart_at: usize,
    /// How often that was tried in vain.
    pub(crate) in_vain: u32,
    /// The engine's mark of the last commit of others that was noticed.
    pub(crate) seen: Option<i64>,
}

impl Writer {
    /// Works until the last handle is gone and the queue is empty.
    pub(crate) fn run(mut self, mut queue: mpsc::Receiver<Message>) {
        while let Some(first) = queue.blocking_recv() {
            self.serve(gather(first, &mut queue));
        }
    }

    fn serve(&mut self, mut batch: Batch) {
        let done = self.commit(&mut batch.jobs);
        let full = matches!(done, Err(StoreError::Full { .. }));
        let Batch { jobs, wakes } = batch;
        match done {
            Ok(()) => {
                failpoint::pass(BEFORE_ANSWER);
                jobs.into_iter().for_each(Job::answer);
                for digest in wakes {
                    self.hub.wake(digest);
                }
            }
            Err(error) => {
                tracing::debug!(error = %error, calls = jobs.len(), "a batch was not written");
                jobs.into_iter().for_each(|job| job.fail(twin(&error)));
            }
        }
        self.tend_log(full);
    }

    /// Runs all of a batch, or nothing of it.
    fn commit(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        let connection = match self.connection.take().filter(|c| c.is_current(&self.config)) {
            Some(connection) => connection,
            None => self.reconnect()?,
        };
        let before = connection.total_changes();
        let done = self.notice_others(&connection).and_then(|()| transact(&connection, jobs));
        if done.is_ok() && connection.total_changes() > before {
            self.tally.commits.fetch_add(1, Ordering::Relaxed);
        }
        let mut errors = jobs.iter().filter_map(|job| job.error()).chain(done.as_ref().err());
        if errors.all(keeps_connection) {
            self.connection = Some(connection);
        }
        done
    }

    fn reconnect(&mut self) -> Result<Session, StoreError> {
        let mut connection = connect(&self.config)?;
        let pages = self.pages.clone();
        // Also takes the place of the engine's own checkpoints, which would stall this thread.
        connection
            .wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count| {
                pages.store(usize::try_from(count).unwrap_or(0), Ordering::Relaxed);
                Ok(())
            }))
            .map_err(fault)?;
        checkpoint::limit_log(&connection)?;
        connection.pragma_update(None, "cache_size", CACHE_KIB).map_err(fault)?;
        self.seen = None;
        Ok(connection)
    }

    /// Another process's commit may be the one that somebody here waits for. The engine's mark
    /// does not move for commits of this connection, so our own wake nobody twice.
    fn notice_others(&mut self, connection: &Connection) -> Result<(), StoreError> {
        let mark: i64 = connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut query| query.query_row([], |row| row.get(0)))
            .map_err(fault)?;
        let before = self.seen.replace(mark);
        if before != Some(mark) {
            self.tally.foreign.fetch_add(u64::from(before.is_some()), Ordering::Relaxed);
            self.hub.wake_all();
        }
        Ok(())
    }

    /// Between two batches, when nobody is inside a transaction of ours. On a full disk a log that
    /// begins anew is the room that deleting needs.
    fn tend_log(&mut self, full: bool) {
        let pages = self.pages.load(Ordering::Relaxed);
        if (full || pages >= self.restart_at)
            && let Some(connection) = &self.connection
        {
            if checkpoint::restart_log(connection, self.config.patience()) {
                (self.restart_at, self.in_vain) = (checkpoint::RESTART_PAGES, 0);
            } else {
                // The keeper may just be at its copying, which it is not asked for any more: soon it
                // is out of the way. Where a long read of somebody else is, every batch would try in
                // vain.
                self.in_vain += 1;
                if self.in_vain.is_multiple_of(TRIES) {
                    self.restart_at = pages + checkpoint::RESTART_PAGES;
                }
            }
            self.pages.store(0, Ordering::Relaxed);
        } else if pages >= checkpoint::CHECKPOINT_PAGES {
            // Full means that it has been told already.
            let _ = self.keeper.try_send(Duty::Checkpoint);
        }
    }
}

struct Batch {
    jobs: Vec<Box<dyn Job>>,
    wakes: Vec<u64>,
}

/// Everything that waits, up to the limits.
fn gather(first: Message, queue: &mut mpsc::Receiver<Message>) -> Batch {
    let mut batch = Batch { jobs: Vec::new(), wakes: Vec::new() };
    let mut size = 0;
    let mut next = Some(first);
    while let Some(message) = next.take() {
        if let Message::Do { job, bytes, wakes } = message {
            batch.jobs.push(job);
            batch.wakes.extend(wakes);
            size += bytes;
        }
        if batch.jobs.len() < MAX_JOBS && size < MAX_BYTES {
            next = queue.try_recv().ok();
        }
    }
    batch
}

fn transact(connection: &Connection, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    execute(connection, "BEGIN IMMEDIATE")?;
    let done = run_all(connection, jobs).and_then(|()| {
        failpoint::pass(BEFORE_COMMIT);
        // Where nothing was written this costs nothing: the engine has no page to write.
        execute(connection, "COMMIT")
    });
    if done.is_err() && !connection.is_autocommit() {
        let _ = execute(connection, "ROLLBACK");
    }
    done
}

fn run_all(connection: &Connection, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
    migrate::confirm(connection)?;
    for job in jobs {
        // Whoever is told that the outcome is unknown need not be surprised by it.
        if job.is_abandoned() {
            continue;
        }
        let before = connection.total_changes();
        job.run(connection);
        failpoint::pass(MID_BATCH);
        if connection.is_autocommit() {
            // The engine rolled back everything, as it does where the disk is full.
            return Err(job.error().map_or_else(|| bug("a transaction was lost"), twin));
        }
        // What failed after its first write may have left half of itself. That is so rare that the
        // others may pay for it: a savepoint for each call would cost all of them, always.
        if let Some(error) = job.error()
            && connection.total_changes() != before
        {
            return Err(twin(error));
        }
    }
    Ok(())
}

fn execute(connection: &Connection, sql: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute([]))
        .map(drop)
        .map_err(fault)
}

/// Everything else may be the connection's own fault: the next batch opens a new one.
fn keeps_connection(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Locked { .. } | StoreError::Full { .. } | StoreError::Corrupt { .. }
    )
}
