//! Keys that this process has seen settled, so that their next claim begins with a plain read.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many keys are remembered: 128 kB.
const SLOTS: usize = 16_384;

/// A hint: a claim of a key that it contains is usually a retry. A key that has expired since costs one needless read.
pub(crate) struct SettledKeys(Box<[AtomicU64]>);

impl SettledKeys {
    pub(crate) fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(crate) fn contains(&self, digest: u64) -> bool {
        self.slot(digest).load(Ordering::Relaxed) == digest
    }

    /// Remembers a key in place of the one that had its slot.
    pub(crate) fn insert(&self, digest: u64) {
        self.slot(digest).store(digest, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, digest: u64) {
        let _ = self.slot(digest).compare_exchange(digest, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn slot(&self, digest: u64) -> &AtomicU64 {
        &self.0[digest as usize % SLOTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_keys_forget_the_older_of_two_in_one_slot() {
        let keys = SettledKeys::new();
        let (older, newer) = (7, 7 + SLOTS as u64);
        keys.insert(older);
        assert!(keys.contains(older) && !keys.contains(newer));
        keys.insert(newer);
        assert!(keys.contains(newer) && !keys.contains(older));
        keys.remove(older);
        assert!(keys.contains(newer));
        keys.remove(newer);
        assert!(!keys.contains(newer));
    }
}
