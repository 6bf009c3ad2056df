//! Whether a claim goes to the writer at once, or asks a reader first.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// After this many grants in a row the next claim is taken for one of a new key.
const GRANTS_IN_A_ROW: u32 = 8;

/// Only the writer grants a claim, and a reader that is asked first costs a new key two changes of thread.
/// A claim that is settled or busy is better answered by a reader, beside the running commit. The last
/// answers tell which is likely; a wrong guess costs time and nothing else.
#[derive(Debug, Default)]
pub(crate) struct ClaimForecast {
    grants: AtomicU32,
    /// The writer waits for another process's write lock, which a reader does not need.
    lock_wait: AtomicBool,
}

impl ClaimForecast {
    pub(crate) fn expects_grant(&self) -> bool {
        self.grants.load(Ordering::Relaxed) >= GRANTS_IN_A_ROW
            && !self.lock_wait.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, is_granted: bool) {
        if !is_granted {
            self.grants.store(0, Ordering::Relaxed);
        } else if self.grants.load(Ordering::Relaxed) < GRANTS_IN_A_ROW {
            self.grants.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_lock_wait(&self, waits: bool) {
        self.lock_wait.store(waits, Ordering::Relaxed);
    }
}
