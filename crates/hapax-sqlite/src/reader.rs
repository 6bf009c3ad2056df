//! The reader threads, each with its own connection: those that every claim needs, and one for
//! operators, whose lists and counts may take long.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hapax_core::{OpenMode, StoreResult};
use tokio::sync::mpsc;

use crate::connect::{FileConnection, connect, reuse_or_connect};
use crate::error::{internal_error, store_error};
use crate::files::StoreFiles;
use crate::migrate;
use crate::queued_call::QueuedCall;
use crate::session::{Session, execute};

/// How many reads share one snapshot.
const MAX_CALLS: usize = 32;
/// The size of a group of calls, which share a snapshot and the thread's wake-up: the next reader gets calls when one has a group
/// more.
const CALLS_TOGETHER: usize = 16;
/// A batch of reads of single rows takes a tenth of this.
const SLOW_BATCH_MICROS: u64 = 2_000;
/// After how many steps of the engine an operator's call looks whether it was abandoned.
const STEPS: i32 = 10_000;

/// The queue of one reader thread. Each has its own: threads that wait for one queue are all woken by each call.
pub(crate) struct ReadQueue {
    waiting: mpsc::Sender<Box<dyn QueuedCall>>,
    running: Arc<RunningBatch>,
}

impl ReadQueue {
    pub(crate) fn sender(&self) -> &mpsc::Sender<Box<dyn QueuedCall>> {
        &self.waiting
    }

    /// Grows with how long a new call has to wait.
    pub(crate) fn load(&self) -> ReaderLoad {
        let room = self.waiting.capacity();
        let waiting = self.waiting.max_capacity() - room;
        let calls = waiting + self.running.calls.load(Ordering::Relaxed);
        if self.waiting.is_closed() {
            ReaderLoad::Ended
        } else if room == 0 || self.running.is_slow() {
            ReaderLoad::Slow { calls }
        } else {
            ReaderLoad::Groups(calls / CALLS_TOGETHER)
        }
    }
}

/// The calls before a new one of this reader; readers are chosen in the order of the variants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReaderLoad {
    /// So many groups of calls.
    Groups(usize),
    /// A slow read, or room in a full queue.
    Slow { calls: usize },
    /// For ever: the thread has ended.
    Ended,
}

/// The reads that share a snapshot now.
struct RunningBatch {
    calls: AtomicUsize,
    /// When they began: microseconds since `origin`.
    begun: AtomicU64,
    origin: Instant,
}

impl RunningBatch {
    fn begin(&self, calls: usize) {
        self.begun.store(self.now(), Ordering::Relaxed);
        self.calls.store(calls, Ordering::Relaxed);
    }

    fn end(&self) {
        self.calls.store(0, Ordering::Relaxed);
    }

    fn is_slow(&self) -> bool {
        let age = || self.now().saturating_sub(self.begun.load(Ordering::Relaxed));
        self.calls.load(Ordering::Relaxed) > 0 && age() > SLOW_BATCH_MICROS
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// The other end of a [`ReadQueue`].
pub(crate) struct ReaderThread {
    waiting: mpsc::Receiver<Box<dyn QueuedCall>>,
    running: Arc<RunningBatch>,
}

pub(crate) fn queue(max_waiting_calls: usize) -> (ReadQueue, ReaderThread) {
    let (sender, waiting) = mpsc::channel(max_waiting_calls);
    let (calls, begun) = Default::default();
    let running = Arc::new(RunningBatch { calls, begun, origin: Instant::now() });
    (ReadQueue { waiting: sender, running: running.clone() }, ReaderThread { waiting, running })
}

impl ReaderThread {
    /// Serves reads until the last store handle is dropped and the queue is empty.
    pub(crate) fn run(mut self, files: &StoreFiles, mut connection: Option<FileConnection>) {
        let mut calls = Vec::with_capacity(MAX_CALLS);
        loop {
            let taken = self.waiting.blocking_recv_many(&mut calls, MAX_CALLS);
            if taken == 0 {
                return;
            }
            self.running.begin(taken);
            connection = serve(files, connection.take(), &mut calls, open, || self.running.end());
        }
    }
}

/// Serves operators' reads one at a time, and ends a read whose caller is gone.
pub(crate) fn run_for_operators(
    files: &StoreFiles,
    mut queue: mpsc::Receiver<Box<dyn QueuedCall>>,
    running: &RunningCall,
) {
    let mut connection = None;
    while let Some(call) = queue.blocking_recv() {
        // The last call's flag is set by now, and must not end the next one before it begins.
        running.begin(&AbandonedFlag::default());
        let open = |files: &StoreFiles| {
            let mut connection = open(files)?;
            let running = running.clone();
            let is_abandoned = move || running.is_abandoned();
            // Versions of `rusqlite` differ in what this returns: nothing, or a result without errors.
            let raw: &mut rusqlite::Connection = &mut connection;
            let _ = raw.progress_handler(STEPS, Some(is_abandoned));
            Ok(connection)
        };
        connection = serve(files, connection.take(), &mut vec![call], open, || ());
    }
}

/// The operator's call that runs now.
#[derive(Clone, Default)]
pub(crate) struct RunningCall(Arc<Mutex<AbandonedFlag>>);

impl RunningCall {
    pub(crate) fn begin(&self, call: &AbandonedFlag) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = call.clone();
    }

    fn is_abandoned(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.load(Ordering::Relaxed)
    }
}

/// Whether a caller has stopped waiting.
#[derive(Clone, Default)]
pub(crate) struct AbandonedFlag(Arc<AtomicBool>);

/// Sets the flag when the caller's future is dropped: answered, timed out or cancelled.
pub(crate) struct AbandonOnDrop(pub(crate) AbandonedFlag);

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the calls on one snapshot, and answers them when `done` was called.
fn serve(
    files: &StoreFiles,
    connection: Option<FileConnection>,
    calls: &mut Vec<Box<dyn QueuedCall>>,
    open: impl FnOnce(&StoreFiles) -> StoreResult<FileConnection>,
    done: impl FnOnce(),
) -> Option<FileConnection> {
    let begun = reuse_or_connect(connection, files, open).and_then(|connection| {
        // The clock is read before the snapshot: a lease that is renewed after the snapshot would otherwise
        // seem to have run out. An injected clock may panic.
        let clock = catch_unwind(AssertUnwindSafe(|| connection.clock().fixed()))
            .map_err(|_| internal_error("the clock panicked"))?;
        execute(&connection, "BEGIN", [])?;
        if files.config.mode != OpenMode::ReadOnly {
            migrate::check_version(&connection).map_err(|error| files.remember(error))?;
        }
        Ok((connection, clock))
    });
    let (connection, clock) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            done();
            calls.drain(..).for_each(|call| call.fail(error.clone()));
            return None;
        }
    };
    calls.retain(|call| !call.is_abandoned());
    let session = Session { connection: &connection, clock, sequence: None };
    calls.iter_mut().for_each(|call| call.run(session));
    let all_succeeded = calls.iter().all(|call| call.error().is_none());
    // An open snapshot would keep the write-ahead log from being restarted.
    let ended = execute(&connection, "COMMIT", []).is_ok();
    let kept =
        Some(connection).filter(|connection| ended && all_succeeded && connection.is_reusable());
    // A connection that is not kept is closed before the answers go out, so that the callers' next
    // writes do not meet it.
    done();
    calls.drain(..).for_each(QueuedCall::send_answer);
    kept
}

/// Opens a connection that refuses writes.
pub(crate) fn open(files: &StoreFiles) -> StoreResult<FileConnection> {
    let connection = connect(files)?;
    connection.pragma_update(None, "query_only", true).map_err(store_error)?;
    Ok(connection)
}
