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

/// After so many new pages (1 MiB of 4 KiB pages) the checkpoint thread copies the WAL. Each time it looks at the whole
/// of it and syncs two files, so a checkpoint after each commit costs more than the commit; but one of 2,000 pages from all
/// over a large file keeps the disk from the commits for 30 ms.
const CHECKPOINT_PAGES: usize = 250;
/// From this WAL length on the writer pauses and copies the rest itself, so that the WAL restarts
/// from its beginning: while the writer keeps appending, the checkpoint thread never reaches the end.
pub(crate) const RESTART_PAGES: usize = 8_000;
/// How many pages the writer copies at most for that: it waits for the next checkpoint where there are more.
const RESTART_REST: usize = 60;
/// A WAL that grew beyond this during a long read is truncated when it restarts. (Usually it restarts at 33 to 41 MB.)
const MAX_WAL_BYTES: i64 = 64 << 20;

/// How often the writer checks for other processes' commits while there are waiters.
const FOREIGN_COMMIT_INTERVAL: Duration = Duration::from_millis(25);

/// Why the checkpoint thread is woken.
pub(crate) enum CheckpointSignal {
    /// [`WalLength::needs_checkpoint`].
    GrownWal,
    /// A waiter was registered.
    NewWaiter,
}

/// The length of the WAL in pages: estimated by the writer, and measured by each checkpoint.
#[derive(Debug, Default)]
pub(crate) struct WalLength {
    now: AtomicUsize,
    at_last_checkpoint: AtomicUsize,
}

impl WalLength {
    pub(crate) fn grow(&self, pages: usize) {
        self.now.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn pages(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    /// Whether the WAL grew so much since the last checkpoint that it is time for another one.
    pub(crate) fn needs_checkpoint(&self) -> bool {
        self.since_checkpoint() >= CHECKPOINT_PAGES
    }

    /// Whether the WAL is long, and little of it is left to be copied. Beside large batches there is always more: from
    /// a quarter more pages on it is restarted in any case.
    pub(crate) fn needs_restart(&self, restart_at: usize) -> bool {
        let pages = self.pages();
        pages >= restart_at
            && (self.since_checkpoint() <= RESTART_REST || pages >= restart_at + RESTART_PAGES / 4)
    }

    fn since_checkpoint(&self) -> usize {
        let pages = self.pages();
        // A checkpoint may report its measure after the writer has restarted the WAL.
        pages.checked_sub(self.at_last_checkpoint.load(Ordering::Relaxed)).unwrap_or(pages)
    }

    /// Notes what a checkpoint measured, if it could.
    fn measured(&self, pages: Option<usize>) {
        if let Some(pages) = pages {
            self.now.store(pages, Ordering::Relaxed);
            self.at_last_checkpoint.store(pages, Ordering::Relaxed);
        }
    }
}

pub(crate) struct Checkpointer {
    pub(crate) files: Arc<StoreFiles>,
    pub(crate) hub: WakeRegistry,
    pub(crate) wal: Arc<WalLength>,
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
                Ok(CheckpointSignal::GrownWal) => connection = self.checkpoint(connection),
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
        copy_wal(&connection, &self.wal).ok().map(|()| connection)
    }
}

/// Copies as much of the WAL as nobody is in the way of, and stores its measured length.
pub(crate) fn copy_wal(connection: &Connection, wal: &WalLength) -> StoreResult<()> {
    let result = checkpoint(connection, "PASSIVE")?;
    wal.measured(result.pages);
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
    wal: &WalLength,
) -> bool {
    let _ = connection.busy_timeout(Duration::from_millis(5));
    let result = checkpoint(connection, "RESTART");
    let _ = connection.busy_timeout(lock_timeout);
    let Ok(CheckpointResult { blocked, pages }) = result else { return false };
    wal.measured(if blocked { pages } else { Some(0) });
    !blocked
}

struct CheckpointResult {
    blocked: bool,
    /// The length of the WAL; `None` where another checkpoint is running.
    pages: Option<usize>,
}

fn checkpoint(connection: &Connection, mode: &str) -> StoreResult<CheckpointResult> {
    let result = connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let pages = usize::try_from(row.get::<_, i64>(1)?).ok();
        Ok(CheckpointResult { blocked: row.get(0)?, pages })
    });
    result.map_err(store_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint after each commit once took a third of the processor, and the disk from the commits.
    #[test]
    fn wal_is_checkpointed_once_for_so_many_new_pages() {
        let (wal, mut checkpoints) = (WalLength::default(), 0);
        for _ in 0..RESTART_PAGES {
            wal.grow(1);
            if wal.needs_checkpoint() {
                checkpoints += 1;
                // A reader is in the way: nothing could be copied.
                wal.measured(Some(wal.pages()));
            }
        }
        assert_eq!(checkpoints, RESTART_PAGES / CHECKPOINT_PAGES);
    }

    #[test]
    fn wal_is_restarted_when_little_of_it_is_left_to_copy() {
        let wal = WalLength::default();
        wal.grow(RESTART_PAGES);
        assert!(!wal.needs_restart(RESTART_PAGES), "all of it is left");
        assert!(wal.needs_checkpoint());
        wal.measured(Some(RESTART_PAGES));
        wal.grow(RESTART_REST);
        assert!(wal.needs_restart(RESTART_PAGES));
        wal.grow(1);
        assert!(!wal.needs_restart(RESTART_PAGES));
        // Checkpoints that always leave too much do not let it grow for ever, nor after a long read postponed the restart.
        wal.grow(RESTART_PAGES / 4);
        assert!(wal.needs_restart(RESTART_PAGES));
        wal.grow(100_000);
        assert!(wal.needs_restart(100_000));
    }

    /// A checkpoint ends, the writer restarts the WAL, and only then the checkpoint's measure is noted.
    #[test]
    fn late_measure_of_a_restarted_wal_does_not_stop_checkpoints() {
        let wal = WalLength::default();
        wal.at_last_checkpoint.store(RESTART_PAGES, Ordering::Relaxed);
        wal.grow(CHECKPOINT_PAGES);
        assert!(wal.needs_checkpoint());
    }
}
