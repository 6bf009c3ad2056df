//! The checkpoint thread: copies the write-ahead log (WAL) into the database, so that the writer
//! thread is not held up by it, and makes the writer check for other processes' commits while there
//! are waiters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use hapax_core::{StoreResult, WakeRegistry};
use rusqlite::Connection;
use tokio::sync::mpsc::WeakSender;

use crate::connect::{FileConnection, connect, reuse_or_connect};
use crate::error::store_error;
use crate::files::StoreFiles;
use crate::writer::WriterMessage;

/// From this WAL length on (4 MiB of 4 KiB pages) the checkpoint thread copies it.
pub(crate) const CHECKPOINT_PAGES: usize = 1_000;
/// From this WAL length on the writer pauses and copies the rest itself, so that the WAL restarts
/// from its beginning: while the writer keeps appending, the checkpoint thread never reaches the end.
pub(crate) const RESTART_PAGES: usize = 8_000;
/// A WAL that grew beyond this during a long read is truncated when it restarts.
const MAX_WAL_BYTES: i64 = 32 << 20;

/// How often the writer checks for other processes' commits while there are waiters.
const FOREIGN_COMMIT_INTERVAL: Duration = Duration::from_millis(25);

/// Why the checkpoint thread is woken.
pub(crate) enum CheckpointSignal {
    /// The WAL is longer than [`CHECKPOINT_PAGES`].
    LongWal,
    /// A waiter was registered.
    NewWaiter,
}

pub(crate) struct Checkpointer {
    pub(crate) files: Arc<StoreFiles>,
    pub(crate) hub: WakeRegistry,
    /// How long the WAL is by the writer's estimate; each checkpoint measures it.
    pub(crate) wal_pages: Arc<AtomicUsize>,
    /// Weak, so that the writer ends with the last store handle.
    pub(crate) writer: WeakSender<WriterMessage>,
}

impl Checkpointer {
    /// Works until the store handles and the writer are gone.
    pub(crate) fn run(self, signals: Receiver<CheckpointSignal>) {
        let mut connection = None;
        loop {
            let signal = if self.hub.is_idle() {
                signals.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                signals.recv_timeout(FOREIGN_COMMIT_INTERVAL)
            };
            match signal {
                Ok(CheckpointSignal::LongWal) => connection = self.checkpoint(connection),
                Ok(CheckpointSignal::NewWaiter) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.hub.is_idle()
                && let Some(writer) = self.writer.upgrade()
            {
                // A full queue may drop this message: every batch checks for foreign commits anyway.
                let _ = writer.try_send(WriterMessage::CheckForeignCommits);
            }
        }
    }

    /// Drops the connection on failure; the writer signals again after its next batch.
    fn checkpoint(&self, connection: Option<FileConnection>) -> Option<FileConnection> {
        let connection = reuse_or_connect(connection, &self.files, connect).ok()?;
        copy_wal(&connection, &self.wal_pages).ok().map(|()| connection)
    }
}

/// Copies as much of the WAL as nobody is in the way of, and stores its measured length.
pub(crate) fn copy_wal(connection: &Connection, wal_pages: &AtomicUsize) -> StoreResult<()> {
    let CheckpointResult { pages, .. } = checkpoint(connection, "PASSIVE")?;
    wal_pages.store(pages, Ordering::Relaxed);
    Ok(())
}

/// Makes SQLite truncate the WAL file when it restarts.
pub(crate) fn limit_wal_size(connection: &Connection) -> StoreResult<()> {
    connection
        .pragma_update_and_check(None, "journal_size_limit", MAX_WAL_BYTES, |_| Ok(()))
        .map_err(store_error)
}

/// Copies the rest of the WAL and makes the next commit restart it. `false` where a reader was in
/// the way; it is hardly waited for, and the WAL grows until a later try.
pub(crate) fn restart_wal(
    connection: &Connection,
    lock_timeout: Duration,
    wal_pages: &AtomicUsize,
) -> bool {
    let _ = connection.busy_timeout(Duration::from_millis(5));
    let result = checkpoint(connection, "RESTART");
    let _ = connection.busy_timeout(lock_timeout);
    let Ok(CheckpointResult { blocked, pages }) = result else { return false };
    wal_pages.store(if blocked { pages } else { 0 }, Ordering::Relaxed);
    !blocked
}

struct CheckpointResult {
    blocked: bool,
    /// The length of the WAL.
    pages: usize,
}

fn checkpoint(connection: &Connection, mode: &str) -> StoreResult<CheckpointResult> {
    let result = connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let pages = usize::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
        Ok(CheckpointResult { blocked: row.get(0)?, pages })
    });
    result.map_err(store_error)
}
