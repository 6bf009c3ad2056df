use std::time::Duration;

/// How long to wait before the next attempt: twice as long each time up to a maximum, with jitter, so
/// that failures of the same moment are not retried in the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
}

impl Backoff {
    /// Waits of at most `initial` after the first failure and of at most `max` after any.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max }
    }

    /// The wait after the `nth` failure: a random part, at least half, of the doubled time.
    ///
    /// ```
    /// # use hapax_core::worker::Backoff; use std::time::Duration;
    /// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    /// let third = backoff.after(3);
    /// assert!(third >= Duration::from_secs(2) && third <= Duration::from_secs(4));
    /// assert!(backoff.after(1000) <= Duration::from_secs(60));
    /// ```
    pub fn after(&self, nth: u32) -> Duration {
        let doubled = 1_u32.checked_shl(nth.saturating_sub(1)).unwrap_or(u32::MAX);
        let whole = self.initial.checked_mul(doubled).unwrap_or(self.max).min(self.max);
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// The same waits, but none longer than `max`.
    #[must_use]
    pub fn at_most(self, max: Duration) -> Self {
        Self { initial: self.initial.min(max), max: self.max.min(max) }
    }

    /// The wait after the first failure, without jitter.
    pub fn initial(&self) -> Duration {
        self.initial
    }
}

impl Default for Backoff {
    /// From half a second to a minute.
    fn default() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(60))
    }
}
