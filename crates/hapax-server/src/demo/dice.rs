//! Chance for the demo: cheap, and good for nothing else.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A source of chance that tasks share.
pub(super) struct Dice(AtomicU64);

impl Dice {
    pub(super) fn new() -> Self {
        let mut seed = [0; 8];
        // Without randomness every demo runs alike, which is no harm.
        let _ = getrandom::fill(&mut seed);
        Self(AtomicU64::new(u64::from_ne_bytes(seed)))
    }

    /// A number of the range (SplitMix64).
    pub(super) fn pick(&self, range: Range<u64>) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15;
        let mut mixed = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        range.start + (mixed ^ (mixed >> 31)) % (range.end - range.start)
    }

    /// Whether something happens that happens in so many cases of a hundred.
    pub(super) fn percent(&self, cases: u64) -> bool {
        self.pick(0..100) < cases
    }

    /// Waits for so many milliseconds.
    pub(super) async fn pause(&self, millis: Range<u64>) {
        tokio::time::sleep(Duration::from_millis(self.pick(millis))).await;
    }
}
