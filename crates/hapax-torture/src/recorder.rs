//! Collects the history while a run goes on.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::history::{HistoryEntry, Observation};

/// Shared by all clients and fault injectors of a run.
pub(crate) struct HistoryRecorder {
    start: Instant,
    entries: Mutex<Vec<HistoryEntry>>,
}

impl HistoryRecorder {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), entries: Mutex::new(Vec::new()) }
    }

    /// Microseconds since the start of the run.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Records what began at `from` and has ended now.
    pub(crate) fn record(&self, client: u32, from: u64, what: Observation) {
        let to = self.now();
        self.lock().push(HistoryEntry { from, to, client, what });
    }

    /// Records an event at this moment. Events that one lock orders have to be recorded under that lock.
    pub(crate) fn record_now(&self, client: u32, what: Observation) {
        let mut entries = self.lock();
        let now = self.now();
        entries.push(HistoryEntry { from: now, to: now, client, what });
    }

    /// How many entries there are so far: all, and faults.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let entries = self.lock();
        let is_fault = |entry: &&HistoryEntry| matches!(entry.what, Observation::Fault { .. });
        let faults = entries.iter().filter(is_fault).count();
        (entries.len() - faults, faults)
    }

    /// What `find` makes of the observations so far.
    pub(crate) fn find<T, C: FromIterator<T>>(
        &self,
        find: impl FnMut(&Observation) -> Option<T>,
    ) -> C {
        self.lock().iter().map(|entry| &entry.what).filter_map(find).collect()
    }

    pub(crate) fn take(&self) -> Vec<HistoryEntry> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<HistoryEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
