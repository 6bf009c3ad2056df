//! How many rows are leased at once.

use std::time::Duration;

use hapax_core::queue::LeasedItem;

/// The most payload bytes of one batch, estimated from the last ones: leased rows are in memory.
const MAX_BYTES: usize = 16 << 20;
/// The size of the first batch; a low load does not make batches smaller than this.
const MIN_ROWS: usize = 32;

/// The size of the next batch: grows while batches are full, shrinks when they are nearly empty, slow
/// or heavy.
pub(crate) struct BatchSize {
    rows: usize,
    max: usize,
    bytes_per_row: usize,
}

impl BatchSize {
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { rows: MIN_ROWS.min(max), max, bytes_per_row: 1 }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.min(MAX_BYTES / self.bytes_per_row).max(1)
    }

    /// Records what a lease of `asked` rows gave.
    pub(crate) fn record_lease(&mut self, asked: usize, rows: &[LeasedItem]) {
        if rows.len() >= asked {
            self.rows = (self.rows * 2).min(self.max);
        } else if rows.len() < self.rows / 4 {
            self.rows = (self.rows / 2).max(MIN_ROWS.min(self.max));
        }
        if !rows.is_empty() {
            let bytes: usize = rows.iter().map(|row| row.item.payload.len()).sum();
            // The estimate rises at once and falls slowly: one light batch proves little.
            self.bytes_per_row = (bytes / rows.len()).max(self.bytes_per_row / 2).max(1);
        }
    }

    /// Records how long a batch took: it should end long before its lease.
    pub(crate) fn record_duration(&mut self, time: Duration, lease: Duration) {
        if time > lease / 4 {
            self.rows = (self.rows / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::queue::QueueItem;
    use hapax_core::{Fence, Tenant};

    fn rows(n: usize, bytes: usize) -> Vec<LeasedItem> {
        let item = QueueItem::new(&Tenant::default(), "t", vec![0; bytes]);
        let row = LeasedItem { item, attempt: 1, fence: Fence(1), age: Duration::ZERO };
        vec![row; n]
    }

    #[test]
    fn batch_size_follows_the_load() {
        let mut size = BatchSize::new(1000);
        let asked = size.rows();
        size.record_lease(asked, &rows(asked, 10));
        assert_eq!(size.rows(), asked * 2);
        (0..20).for_each(|_| size.record_lease(1, &rows(1, 10)));
        assert_eq!(size.rows(), 1000);
        (0..20).for_each(|_| size.record_lease(1000, &rows(1, 10)));
        assert_eq!(size.rows(), MIN_ROWS);
    }

    #[test]
    fn batch_size_shrinks_with_heavy_rows() {
        let mut size = BatchSize::new(1000);
        (0..20).for_each(|_| size.record_lease(1, &rows(1, 1 << 20)));
        assert_eq!(size.rows(), 16);
    }

    #[test]
    fn batch_size_shrinks_after_slow_batches() {
        let mut size = BatchSize::new(1000);
        (0..20)
            .for_each(|_| size.record_duration(Duration::from_secs(10), Duration::from_secs(30)));
        assert_eq!(size.rows(), 1);
    }
}
