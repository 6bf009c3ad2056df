use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Milliseconds since the Unix epoch, on a store's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This timestamp plus `time`, saturating at the largest timestamp.
    #[must_use]
    pub fn plus(self, time: Duration) -> Self {
        Self(self.0.saturating_add(millis(time)))
    }

    /// The time from `earlier` to this timestamp; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in whole milliseconds, rounded up so that a lease is never shorter than requested.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(hapax_core::millis(Duration::from_micros(1500)), 2);
/// ```
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The moment `time` after `start`, and at most a lifetime after it: a sum that is too large for the clock
/// of the machine would panic.
///
/// ```
/// # use std::time::Duration;
/// let start = tokio::time::Instant::now();
/// assert_eq!(hapax_core::deadline_after(start, Duration::from_secs(1)), start + Duration::from_secs(1));
/// assert!(hapax_core::deadline_after(start, Duration::MAX) > start + Duration::from_secs(1));
/// ```
pub fn deadline_after(start: Instant, time: Duration) -> Instant {
    const LIFETIME: Duration = Duration::from_secs(100 * 366 * 86_400);
    start + time.min(LIFETIME)
}

/// The clock of the embedded stores. Redis and PostgreSQL use the clock of their server.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// The clock of the machine, which can be set: for times that are shown, not for leases.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place where the real time comes in")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Timestamp(since_epoch.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// A clock that no step of the machine's clock moves: the machine's clock at its making, and the time
/// since then. For stores of one process.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    start: Timestamp,
    made: std::time::Instant,
}

impl Default for SteadyClock {
    fn default() -> Self {
        Self { start: SystemClock.now(), made: std::time::Instant::now() }
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        // Rounded down: a clock must not run ahead of itself.
        let elapsed = u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.start.0.saturating_add(elapsed))
    }
}

/// Another clock, which stands still where that one goes back: what has expired stays expired, and a
/// lease that is granted meanwhile lasts.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// use hapax_core::{Clock, ManualClock, MonotonicClock};
/// let manual = Arc::new(ManualClock::default());
/// let clock = MonotonicClock::new(manual.clone());
/// let before = clock.now();
/// manual.set_back(Duration::from_secs(60));
/// assert_eq!(clock.now(), before);
/// manual.advance(Duration::from_secs(61));
/// assert_eq!(clock.now().since(before), Duration::from_secs(1));
/// ```
#[derive(Debug)]
pub struct MonotonicClock {
    clock: Arc<dyn Clock>,
    latest: AtomicU64,
}

impl MonotonicClock {
    /// Follows this clock forward.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, latest: AtomicU64::new(0) }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Timestamp {
        let now = self.clock.now().0;
        Timestamp(self.latest.fetch_max(now, Ordering::SeqCst).max(now))
    }
}

/// A clock that moves only by [`ManualClock::advance`], so that tests need not sleep.
///
/// ```
/// # use std::time::Duration;
/// use hapax_core::{Clock, ManualClock};
/// let clock = ManualClock::default();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.now().since(before), Duration::from_secs(5));
/// ```
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl Default for ManualClock {
    /// Starts in September 2001, at a round number that is easy to recognise in a dump.
    fn default() -> Self {
        Self(AtomicU64::new(1_000_000_000_000))
    }
}

impl ManualClock {
    /// Advances the clock by `time`.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(millis(time), Ordering::SeqCst);
    }

    /// Sets the clock back by `time`, as an operator may do with the clock of a machine.
    pub fn set_back(&self, time: Duration) {
        self.0.fetch_sub(millis(time), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// A clock that follows the clock of the tokio runtime. A test that pauses that clock needs not
/// sleep, and none of its leases lapses while the machine stalls.
#[derive(Debug)]
pub struct RuntimeClock(Instant);

impl Default for RuntimeClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        ManualClock::default().now().plus(self.0.elapsed())
    }
}
