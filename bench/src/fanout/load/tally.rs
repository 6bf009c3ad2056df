//! What all clients together have received.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;

use super::mark::{Mark, Scanner};

/// Shared by all clients. They write to it once for each piece that they read, not for each event.
pub(super) struct Tally {
    /// Marks tell times since then.
    pub(super) began: Instant,
    /// How many events arrived at clients.
    pub(super) delivered: AtomicU64,
    /// Bytes of all streams.
    pub(super) bytes: AtomicU64,
    /// Events that a client had before, or that came behind a later one.
    pub(super) duplicates: AtomicU64,
    /// Events that were left out before one that arrived.
    pub(super) gaps: AtomicU64,
    /// Streams that ended.
    pub(super) closed: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
}

impl Tally {
    pub(super) fn new() -> Self {
        let (delivered, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (duplicates, gaps, closed) = Default::default();
        let latencies = Mutex::new(histogram());
        Self { began: Instant::now(), delivered, bytes, duplicates, gaps, closed, latencies }
    }

    pub(super) fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The latencies since the last time this was asked.
    pub(super) fn take_latencies(&self) -> Histogram<u64> {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut latencies, histogram())
    }
}

/// 1 % exact; grows as needed.
pub(in crate::fanout) fn histogram() -> Histogram<u64> {
    Histogram::new(2).expect("two digits are a precision that it takes")
}

/// One client's place in the stream.
#[derive(Default)]
pub(super) struct Reader {
    scanner: Scanner,
    last: u64,
}

impl Reader {
    /// Counts what is in a piece of the stream.
    pub(super) fn read(&mut self, piece: &[u8], tally: &Tally) {
        let now = tally.nanos();
        let mut latencies = tally.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut delivered, mut gaps, mut duplicates) = (0, 0, 0);
        let last = &mut self.last;
        self.scanner.scan(piece, |mark| {
            let Some(Mark { number, nanos }) = mark else { return gaps += 1 };
            delivered += 1;
            // It grows as needed, up to centuries.
            let _ = latencies.record(now.saturating_sub(nanos).max(1));
            if number <= *last {
                duplicates += 1;
            } else {
                gaps += number - *last - 1;
                *last = number;
            }
        });
        drop(latencies);
        tally.bytes.fetch_add(piece.len() as u64, Relaxed);
        tally.delivered.fetch_add(delivered, Relaxed);
        if gaps + duplicates > 0 {
            tally.gaps.fetch_add(gaps, Relaxed);
            tally.duplicates.fetch_add(duplicates, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_duplicates_are_counted() {
        let tally = Tally::new();
        let mut reader = Reader::default();
        for number in [1, 2, 2, 5, 4, 6] {
            let mut text = Vec::new();
            Mark { number, nanos: 0 }.write(&mut text);
            reader.read(&text, &tally);
        }
        let seen = [&tally.delivered, &tally.gaps, &tally.duplicates].map(|n| n.load(Relaxed));
        assert_eq!(seen, [6, 2, 2]);
        assert_eq!(tally.take_latencies().len(), 6);
        assert_eq!(tally.take_latencies().len(), 0);
    }
}
