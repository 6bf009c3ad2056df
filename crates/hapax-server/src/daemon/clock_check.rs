//! Notices that a clock was set: from one look to the next it went on by another time than the
//! monotonic clock. Leases on Redis and PostgreSQL follow the server's clock; after a step there, what
//! this node believes of leases may be wrong until they have run out, and `/readyz` says so.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hapax::{Clock, Store, SystemClock, Timestamp, metric_names, with_timeout};
use metrics::counter;
use tokio::time::Instant;

/// Smaller differences are a clock that is being slewed.
const MAX_DRIFT_MS: i64 = 1000;
/// Leases that are longer are rare, and their owners renew them.
const MAX_DOUBT: Duration = Duration::from_secs(300);

/// The clock of this machine and the clock of the store's server.
#[derive(Default)]
pub(super) struct ClockCheck {
    node: SettableClock,
    store: SettableClock,
    doubt: LeaseDoubt,
}

impl ClockCheck {
    /// The reason against readiness, shared with the check that runs.
    pub(super) fn doubt(&self) -> LeaseDoubt {
        self.doubt.clone()
    }

    /// Looks at both clocks. A store that does not answer is reported by the ping.
    pub(super) async fn look(&mut self, store: &Arc<dyn Store>, timeout: Duration) {
        let now = Instant::now();
        let node = ClockReading { clock: SystemClock.now(), asked: now, answered: now };
        if let Some(jump) = self.node.jump(node) {
            report("node", jump);
        }
        let asked = Instant::now();
        if let Ok(Some(clock)) = with_timeout(timeout, store.server_time()).await {
            self.look_at_store(ClockReading { clock, asked, answered: Instant::now() });
        }
    }

    fn look_at_store(&mut self, reading: ClockReading) {
        if let Some(jump) = self.store.jump(reading) {
            report("store", jump);
            self.doubt.begin(jump);
        }
    }
}

fn report(clock: &'static str, jump: i64) {
    counter!(metric_names::CLOCK_JUMPS, "clock" => clock).increment(1);
    tracing::warn!(clock, jump_ms = jump, "a clock was set; let NTP slew it");
}

/// A clock that was read at some moment between `asked` and `answered`.
#[derive(Clone, Copy)]
struct ClockReading {
    clock: Timestamp,
    asked: Instant,
    answered: Instant,
}

/// The last reading of a clock that somebody can set.
#[derive(Default)]
struct SettableClock(Option<ClockReading>);

impl SettableClock {
    /// By how many milliseconds the clock was set since the last reading, if it was.
    fn jump(&mut self, now: ClockReading) -> Option<i64> {
        let before = self.0.replace(now)?;
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let progress = now.clock.0.cast_signed() - before.clock.0.cast_signed();
        let beyond = progress - ms(now.answered - before.asked);
        let short = progress - ms(now.asked - before.answered);
        if short < -MAX_DRIFT_MS {
            Some(short)
        } else {
            Some(beyond).filter(|ms| *ms > MAX_DRIFT_MS)
        }
    }
}

/// Until when leases may be misjudged, and why.
#[derive(Clone, Default)]
pub(super) struct LeaseDoubt(Arc<Mutex<Option<(Instant, String)>>>);

impl LeaseDoubt {
    /// After a step by `jump` every lease that was misjudged has run out when that time has passed.
    fn begin(&self, jump: i64) {
        let time = Duration::from_millis(jump.unsigned_abs()).min(MAX_DOUBT);
        let (until, seconds) = (Instant::now() + time, jump / 1000);
        let reason = format!(
            "the clock of the store's server was set by {seconds} s: leases may have ended early or \
             late for {} s",
            time.as_secs()
        );
        let mut doubt = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *doubt = doubt.take().filter(|(before, _)| *before > until).or(Some((until, reason)));
    }

    pub(super) fn reason(&self) -> Option<String> {
        let doubt = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        doubt.as_ref().filter(|(until, _)| Instant::now() < *until).map(|(_, why)| why.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A server whose clock differs from the time of the test by this much.
    fn reading(start: Instant, offset_ms: i64) -> ClockReading {
        let elapsed = i64::try_from(start.elapsed().as_millis()).unwrap();
        let clock = Timestamp((1_000_000_000 + elapsed + offset_ms).cast_unsigned());
        ClockReading { clock, asked: Instant::now(), answered: Instant::now() }
    }

    async fn doubt_after(steps: [i64; 3]) -> ClockCheck {
        let (mut check, start) = (ClockCheck::default(), Instant::now());
        for offset in steps {
            check.look_at_store(reading(start, offset));
            tokio::time::advance(SECOND).await;
        }
        check
    }

    #[tokio::test(start_paused = true)]
    async fn fault_13_step_of_the_servers_clock_is_noticed() {
        for (steps, red_for) in
            [([0, 0, 60_000], 60), ([0, 0, -60_000], 60), ([0, 0, 36_000_000], 300)]
        {
            let check = doubt_after(steps).await;
            assert!(check.doubt.reason().is_some_and(|why| why.contains("set by")), "{steps:?}");
            tokio::time::advance(SECOND * (red_for - 5)).await;
            assert!(check.doubt.reason().is_some(), "{steps:?}");
            tokio::time::advance(SECOND * 5).await;
            assert_eq!(check.doubt.reason(), None, "{steps:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slewed_clock_and_slow_answer_are_no_step() {
        let check = doubt_after([0, 900, 1800]).await;
        assert_eq!(check.doubt.reason(), None);
        let (mut clock, start) = (SettableClock::default(), Instant::now());
        assert_eq!(clock.jump(reading(start, 0)), None);
        let asked = Instant::now();
        let read_at_once = reading(start, 0);
        tokio::time::advance(SECOND * 20).await;
        assert_eq!(
            clock.jump(ClockReading { asked, answered: Instant::now(), ..read_at_once }),
            None
        );
        assert_eq!(clock.jump(reading(start, 0)), None);
    }
}
