//! The reader threads, each with its own connection.

use std::sync::{Arc, Mutex, PoisonError};

use hapax_core::{OpenMode, StoreResult};
use tokio::sync::mpsc;

use crate::connect::{FileConnection, connect, reuse_or_connect};
use crate::error::store_error;
use crate::files::StoreFiles;
use crate::migrate;
use crate::queued_call::QueuedCall;
use crate::session::execute;

/// How many reads share one snapshot.
const MAX_CALLS: usize = 32;

/// The queue that all reader threads take calls from.
pub(crate) type ReadQueue = Arc<Mutex<mpsc::Receiver<Box<dyn QueuedCall>>>>;

/// Serves reads until the last store handle is dropped and the queue is empty.
pub(crate) fn run(files: &StoreFiles, queue: &ReadQueue, mut connection: Option<FileConnection>) {
    let mut calls = Vec::with_capacity(MAX_CALLS);
    loop {
        let taken = queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv_many(&mut calls, MAX_CALLS);
        if taken == 0 {
            return;
        }
        connection = serve(files, connection.take(), &mut calls);
    }
}

fn serve(
    files: &StoreFiles,
    connection: Option<FileConnection>,
    calls: &mut Vec<Box<dyn QueuedCall>>,
) -> Option<FileConnection> {
    let begun = reuse_or_connect(connection, files, open).and_then(|connection| {
        execute(&connection, "BEGIN", [])?;
        if files.config.mode != OpenMode::ReadOnly {
            migrate::check_version(&connection).map_err(|error| files.remember(error))?;
        }
        Ok(connection)
    });
    let connection = match begun {
        Ok(connection) => connection,
        Err(error) => {
            calls.drain(..).for_each(|call| call.fail(error.clone()));
            return None;
        }
    };
    calls.retain(|call| !call.is_abandoned());
    calls.iter_mut().for_each(|call| call.run(connection.session()));
    let all_succeeded = calls.iter().all(|call| call.error().is_none());
    // An open snapshot would keep the write-ahead log from being restarted.
    let ended = execute(&connection, "COMMIT", []).is_ok();
    let kept =
        Some(connection).filter(|connection| ended && all_succeeded && connection.is_reusable());
    // A connection that is not kept is closed before the answers go out, so that the callers' next
    // writes do not meet it.
    calls.drain(..).for_each(QueuedCall::send_answer);
    kept
}

/// Opens a connection that refuses writes.
pub(crate) fn open(files: &StoreFiles) -> StoreResult<FileConnection> {
    let connection = connect(files)?;
    connection.pragma_update(None, "query_only", true).map_err(store_error)?;
    Ok(connection)
}
