//! Limits on what requests may hold before and while they run: buffered bytes, requests in flight for
//! each caller, runs whose client has left.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Problem, ProblemKind};

/// After how long a refused request may find room.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The memory that all buffered requests may take together. Clones share it.
///
/// ```
/// use hapax_http::{MemoryBudget, ProblemKind};
/// let budget = MemoryBudget::new(1024);
/// let first = budget.reserve(1000).unwrap();
/// assert_eq!(budget.reserve(100).unwrap_err().kind(), ProblemKind::Overloaded);
/// drop(first);
/// assert!(budget.reserve(100).is_ok());
/// // More than there is will never be free.
/// assert_eq!(budget.reserve(2000).unwrap_err().kind(), ProblemKind::PayloadTooLarge);
/// ```
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    free: Arc<Semaphore>,
    total: usize,
}

/// A part of a [`MemoryBudget`], given back when dropped.
#[derive(Debug, Default)]
pub struct ReservedMemory(Option<OwnedSemaphorePermit>);

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: usize) -> Self {
        let total = bytes.min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(total)), total }
    }

    /// Reserves bytes, or says that there is no room for them now (503 `overloaded`) or that there never
    /// is (413 `payload-too-large`).
    pub fn reserve(&self, bytes: usize) -> Result<ReservedMemory, Problem> {
        let mut reserved = ReservedMemory::default();
        reserved.grow(self, bytes)?;
        Ok(reserved)
    }

    /// Refuses a request that needs more bytes in all than the whole budget has: to send it again later
    /// would be in vain.
    pub(crate) fn check_possible(&self, bytes: usize) -> Result<(), Problem> {
        let total = self.total;
        if bytes <= total {
            return Ok(());
        }
        let text = format!(
            "buffering and parsing the request takes up to {bytes} bytes of memory, and all requests \
             together have {total} (`--buffer-memory`); send a smaller one, or raise that limit"
        );
        Err(Problem::new(ProblemKind::PayloadTooLarge, text))
    }
}

impl Default for MemoryBudget {
    /// 256 MiB.
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

impl ReservedMemory {
    /// Reserves more bytes of the same budget.
    pub fn grow(&mut self, budget: &MemoryBudget, bytes: usize) -> Result<(), Problem> {
        let held = self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        budget.check_possible(held.saturating_add(bytes))?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(more) = budget.free.clone().try_acquire_many_owned(bytes) else {
            return Err(overloaded("the memory for request bodies is in use"));
        };
        match &mut self.0 {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

/// A body that is being read, within the memory that it has reserved.
#[derive(Debug)]
pub struct ReservedBuffer {
    data: Vec<u8>,
    memory: ReservedMemory,
    budget: MemoryBudget,
    max: usize,
}

impl ReservedBuffer {
    /// The least memory that is reserved; it is doubled as the body grows. Nothing is reserved for a
    /// length that is only announced.
    const MIN_RESERVED: usize = 8 * 1024;

    /// A buffer for a body of at most `max` bytes.
    pub fn new(budget: &MemoryBudget, max: usize) -> Self {
        let memory = ReservedMemory::default();
        Self { data: Vec::new(), memory, budget: budget.clone(), max }
    }

    /// The number of bytes read so far.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether nothing was read so far.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Copies the data: a slice of the connection's read buffer would keep all of that buffer.
    pub fn append(&mut self, data: &[u8]) -> Result<(), Problem> {
        let (needed, capacity) = (self.data.len() + data.len(), self.data.capacity());
        if needed > capacity {
            let doubled = (capacity * 2).max(Self::MIN_RESERVED).min(self.max).max(needed);
            self.memory.grow(&self.budget, doubled - capacity)?;
            self.data.reserve_exact(doubled - self.data.len());
        }
        self.data.extend_from_slice(data);
        Ok(())
    }

    /// The whole body, and its memory, which is to be dropped after it.
    pub fn into_parts(self) -> (Bytes, ReservedMemory) {
        (self.data.into(), self.memory)
    }
}

fn overloaded(reason: &str) -> Problem {
    let text = format!("{reason}; nothing was run, send the request again later");
    Problem::new(ProblemKind::Overloaded, text).retry_after(RETRY_AFTER)
}

/// The limits of all keyed requests of a process. Clones share their counts, so that several layers
/// with one `OverloadLimits` have one limit.
///
/// ```
/// use hapax_http::{IdempotencyConfig, MemoryBudget, OverloadLimits};
/// let limits = OverloadLimits::default()
///     .with_memory(MemoryBudget::new(64 << 20))
///     .with_max_in_flight(100);
/// let config = IdempotencyConfig::new().with_limits(limits);
/// ```
#[derive(Clone)]
pub struct OverloadLimits {
    pub(crate) memory: MemoryBudget,
    max_in_flight: usize,
    max_detached: usize,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Requests in flight of each caller that has some.
    callers: Mutex<HashMap<Tenant, usize>>,
    /// Runs whose client has left. Below zero for a moment where both end at once.
    detached: AtomicIsize,
}

impl Default for OverloadLimits {
    fn default() -> Self {
        Self {
            memory: MemoryBudget::default(),
            max_in_flight: 1024,
            max_detached: 10_000,
            counts: Arc::default(),
        }
    }
}

impl fmt::Debug for OverloadLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverloadLimits")
            .field("memory", &self.memory)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_detached", &self.max_detached)
            .finish_non_exhaustive()
    }
}

impl OverloadLimits {
    /// The memory for request bodies that are buffered (256 MiB); 503 `overloaded` beyond it.
    #[must_use]
    pub fn with_memory(mut self, memory: MemoryBudget) -> Self {
        self.memory = memory;
        self
    }

    /// How many keyed requests of one caller are in flight at once (1024), with runs whose client has
    /// left; 429 `too-many-requests` beyond it.
    #[must_use]
    pub fn with_max_in_flight(mut self, requests: usize) -> Self {
        self.max_in_flight = requests;
        self
    }

    /// How many runs go on at once after their client has left (10 000). While there are so many,
    /// new keyed requests get 503 `overloaded`; those that are completed get their response.
    #[must_use]
    pub fn with_max_detached(mut self, runs: usize) -> Self {
        self.max_detached = runs;
        self
    }

    /// Counts a request of this caller until the permit is dropped.
    pub(crate) fn enter(&self, caller: &Tenant) -> Result<CallerPermit, Problem> {
        let mut callers = self.counts.callers();
        let count = callers.entry(caller.clone()).or_default();
        if *count >= self.max_in_flight {
            let text = format!(
                "the caller has {} keyed requests in flight, which is the limit; nothing was run",
                self.max_in_flight
            );
            return Err(Problem::new(ProblemKind::TooManyRequests, text).retry_after(RETRY_AFTER));
        }
        *count += 1;
        Ok(CallerPermit { caller: caller.clone(), counts: self.counts.clone() })
    }

    /// Refuses a request while too many runs have lost their client.
    pub(crate) fn check_detached(&self) -> Result<(), Problem> {
        let detached = self.counts.detached.load(Ordering::Relaxed);
        if usize::try_from(detached).unwrap_or(0) < self.max_detached {
            return Ok(());
        }
        Err(overloaded("too many requests run whose clients have left"))
    }

    /// The two sides of a run: dropping the client's first makes the run a detached one.
    pub(crate) fn begin_run(&self) -> (ClientPresence, RunPresence) {
        let one_side_ended = Arc::new(AtomicBool::new(false));
        let counts = self.counts.clone();
        let client = ClientPresence { one_side_ended: one_side_ended.clone(), counts };
        (client, RunPresence { one_side_ended, counts: self.counts.clone() })
    }
}

impl Counts {
    fn callers(&self) -> MutexGuard<'_, HashMap<Tenant, usize>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One counted request of a caller.
pub(crate) struct CallerPermit {
    caller: Tenant,
    counts: Arc<Counts>,
}

impl Drop for CallerPermit {
    fn drop(&mut self) {
        let mut callers = self.counts.callers();
        if let Some(count) = callers.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                callers.remove(&self.caller);
            }
        }
    }
}

/// The client's side of a run, held while the client waits for the response or reads it.
pub(crate) struct ClientPresence {
    one_side_ended: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Drop for ClientPresence {
    fn drop(&mut self) {
        if !self.one_side_ended.swap(true, Ordering::AcqRel) {
            self.counts.detached.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for ClientPresence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientPresence").finish_non_exhaustive()
    }
}

/// The service's side of a run, held until the outcome is stored.
pub(crate) struct RunPresence {
    one_side_ended: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Drop for RunPresence {
    fn drop(&mut self) {
        if self.one_side_ended.swap(true, Ordering::AcqRel) {
            self.counts.detached.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detached(limits: &OverloadLimits) -> isize {
        limits.counts.detached.load(Ordering::SeqCst)
    }

    #[test]
    fn fault_18_memory_is_free_again_when_dropped() {
        let budget = MemoryBudget::new(100);
        let mut held = budget.reserve(60).unwrap();
        assert_eq!(budget.reserve(41).unwrap_err().kind(), ProblemKind::Overloaded);
        held.grow(&budget, 40).unwrap();
        assert!(budget.reserve(1).is_err());
        drop(held);
        assert!(budget.reserve(100).is_ok());
    }

    #[test]
    fn fault_24_more_than_the_whole_memory_is_not_retryable() {
        let budget = MemoryBudget::new(100);
        let mut held = budget.reserve(60).unwrap();
        for refused in [held.grow(&budget, 41), budget.reserve(usize::MAX).map(drop)] {
            let problem = refused.unwrap_err();
            assert_eq!(problem.kind(), ProblemKind::PayloadTooLarge);
            assert!(!problem.is_retryable() && problem.retry_delay().is_none());
            assert!(problem.detail().contains("have 100 (`--buffer-memory`)"));
        }
    }

    #[test]
    fn fault_18_callers_are_counted_apart_and_forgotten() {
        let limits = OverloadLimits::default().with_max_in_flight(1);
        let [a, b] = ["a", "b"].map(|name| Tenant::new(name).unwrap());
        let first = limits.enter(&a).unwrap();
        let refused = limits.enter(&a).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ProblemKind::TooManyRequests);
        let other = limits.clone().enter(&b).unwrap();
        drop((first, other));
        assert!(limits.counts.callers().is_empty());
        assert!(limits.enter(&a).is_ok());
    }

    #[test]
    fn fault_19_a_run_is_detached_while_only_its_client_is_gone() {
        let limits = OverloadLimits::default().with_max_detached(1);
        let (client, run) = limits.begin_run();
        drop(run);
        assert_eq!(detached(&limits), 0, "the client still reads");
        drop(client);
        assert_eq!(detached(&limits), 0);
        let (client, run) = limits.begin_run();
        assert!(limits.check_detached().is_ok());
        drop(client);
        assert_eq!(limits.check_detached().unwrap_err().kind(), ProblemKind::Overloaded);
        drop(run);
        assert_eq!(detached(&limits), 0);
        assert!(limits.check_detached().is_ok());
    }
}
