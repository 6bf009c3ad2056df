//! How much is leased at once.

use std::time::Duration;

use hapax_core::queue::LeasedItem;

/// Payload bytes of one batch, as far as the last ones let us guess: what is leased is in memory.
const MAX_BYTES: usize = 16 << 20;
/// A batch is that large at the start, and not made smaller where there is little to do.
const MIN_ROWS: usize = 32;

/// Grows while batches come back full, shrinks where they are nearly empty, slow or heavy.
pub(crate) struct BatchSize {
    rows: usize,
    most: usize,
    bytes_per_row: usize,
}

impl BatchSize {
    pub(crate) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { rows: MIN_ROWS.min(most), most, bytes_per_row: 1 }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.min(MAX_BYTES / self.bytes_per_row).max(1)
    }

    /// A lease of `asked` rows gave these.
    pub(crate) fn leased(&mut self, asked: usize, rows: &[LeasedItem]) {
        if rows.len() >= asked {
            self.rows = (self.rows * 2).min(self.most);
        } else if rows.len() < self.rows / 4 {
            self.rows = (self.rows / 2).max(MIN_ROWS.min(self.most));
        }
        if !rows.is_empty() {
            let bytes: usize = rows.iter().map(|row| row.item.payload.len()).sum();
            // One heavy batch is remembered for a while, one light one does not prove anything.
            self.bytes_per_row = (bytes / rows.len()).max(self.bytes_per_row / 2).max(1);
        }
    }

    /// A batch took this long: it should be over long before its lease is.
    pub(crate) fn took(&mut self, time: Duration, lease: Duration) {
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
    fn batches_follow_the_load() {
        let mut pace = BatchSize::new(1000);
        let asked = pace.rows();
        pace.leased(asked, &rows(asked, 10));
        assert_eq!(pace.rows(), asked * 2);
        (0..20).for_each(|_| pace.leased(1, &rows(1, 10)));
        assert_eq!(pace.rows(), 1000);
        (0..20).for_each(|_| pace.leased(1000, &rows(1, 10)));
        assert_eq!(pace.rows(), MIN_ROWS);
    }

    #[test]
    fn heavy_rows_make_small_batches() {
        let mut pace = BatchSize::new(1000);
        (0..20).for_each(|_| pace.leased(1, &rows(1, 1 << 20)));
        assert_eq!(pace.rows(), 16);
    }

    #[test]
    fn slow_batches_become_smaller() {
        let mut pace = BatchSize::new(1000);
        (0..20).for_each(|_| pace.took(Duration::from_secs(10), Duration::from_secs(30)));
        assert_eq!(pace.rows(), 1);
    }
}
