//! The thread that copies the write-ahead log into the database, so that the writer need not, and
//! that makes the writer look for others' commits while somebody waits.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use hapax_core::{StoreError, WakeRegistry};
use rusqlite::Connection;
use tokio::sync::mpsc::WeakSender;

use crate::Config;
use crate::connect::{Session, connect};
use crate::error::fault;
use crate::writer::Message;

/// From here on the keeper copies the log (4 MiB of 4 KiB pages), beside the writer.
pub(crate) const CHECKPOINT_PAGES: usize = 1_000;
/// From here on the writer stops for a moment and copies what the keeper has left, so that the
/// log begins anew: as long as both write, the keeper alone never reaches the end of it.
pub(crate) const RESTART_PAGES: usize = 8_000;
/// What a log that grew during somebody's long read is cut back to.
const LOG_BYTES: i64 = 32 << 20;

/// For how long others' commits may go unnoticed while somebody waits.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// What the keeper is woken for.
pub(crate) enum Duty {
    /// The log is long.
    Checkpoint,
    /// Somebody began to wait.
    Watch,
}

pub(crate) struct Keeper {
    pub(crate) config: Config,
    pub(crate) hub: WakeRegistry,
    /// Weak, so that the writer ends with the last handle.
    pub(crate) writer: WeakSender<Message>,
}

impl Keeper {
    /// Works until both the handles and the writer are gone.
    pub(crate) fn run(self, duties: Receiver<Duty>) {
        let mut connection = None;
        loop {
            let duty = if self.hub.is_idle() {
                duties.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                duties.recv_timeout(LOOK_EVERY)
            };
            match duty {
                Ok(Duty::Checkpoint) => connection = self.checkpoint(connection),
                Ok(Duty::Watch) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.hub.is_idle()
                && let Some(writer) = self.writer.upgrade()
            {
                // A full queue means that the writer is at work, and looks anyway.
                let _ = writer.try_send(Message::Look);
            }
        }
    }

    /// A failed one is tried again when the writer asks again, on a new connection.
    fn checkpoint(&self, connection: Option<Session>) -> Option<Session> {
        let connection = match connection.filter(|c| c.is_current(&self.config)) {
            Some(connection) => connection,
            None => connect(&self.config).ok()?,
        };
        checkpoint(&connection, "PASSIVE").ok().map(|_| connection)
    }
}

/// Lets the log shrink again when it begins anew.
pub(crate) fn limit_log(connection: &Connection) -> Result<(), StoreError> {
    connection
        .pragma_update_and_check(None, "journal_size_limit", LOG_BYTES, |_| Ok(()))
        .map_err(fault)
}

/// Copies the rest and makes the next commit begin the log anew; whether it did. Hardly waits for
/// readers: where one is in the way, the log grows until a later try.
pub(crate) fn restart_log(connection: &Connection, patience: Duration) -> bool {
    let _ = connection.busy_timeout(Duration::from_millis(5));
    let restarted = checkpoint(connection, "RESTART");
    let _ = connection.busy_timeout(patience);
    restarted.unwrap_or(false)
}

/// Whether nobody was in the way.
fn checkpoint(connection: &Connection, mode: &str) -> Result<bool, StoreError> {
    connection
        .query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| row.get(0))
        .map(|busy: bool| !busy)
        .map_err(fault)
}
