//! Counting of delivered events, by a stamp of fixed width in each event that is found without parsing.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;

/// `#0000000017@0000001234567890`: the number, and nanoseconds since the load began. Nothing else in
/// a stream has a `#`.
pub(super) const WIDTH: usize = 1 + NUMBER + 1 + TIME;
const NUMBER: usize = 10;
const TIME: usize = 16;

/// The number and the sending time of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventStamp {
    /// Counted from 1.
    pub(super) number: u64,
    /// The sending time.
    pub(super) nanos: u64,
}

impl EventStamp {
    pub(super) fn write(self, text: &mut Vec<u8>) {
        let Self { number, nanos } = self;
        // Writing to memory cannot fail.
        let _ = write!(text, "#{number:0NUMBER$}@{nanos:0TIME$}");
    }

    fn read(bytes: &[u8; WIDTH]) -> Option<Self> {
        let (number, time) = bytes[1..].split_at(NUMBER);
        let time = time.strip_prefix(b"@")?;
        Some(Self { number: digits(number)?, nanos: digits(time)? })
    }
}

fn digits(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0, |number: u64, byte| {
        byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0'))
    })
}

/// Finds the stamps of one stream, however it is cut into pieces.
#[derive(Default)]
pub(super) struct StampScanner {
    /// The beginning of a stamp that the last piece ended with.
    begun: [u8; WIDTH],
    length: usize,
}

impl StampScanner {
    /// Reports each stamp of the piece in order, and `None` for a malformed one.
    pub(super) fn scan(&mut self, mut piece: &[u8], mut found: impl FnMut(Option<EventStamp>)) {
        while !piece.is_empty() {
            if self.length == 0 {
                let Some(start) = memchr::memchr(b'#', piece) else { return };
                piece = &piece[start..];
            }
            let more = piece.len().min(WIDTH - self.length);
            let (stamp, rest) = piece.split_at(more);
            self.begun[self.length..self.length + more].copy_from_slice(stamp);
            self.length += more;
            piece = rest;
            if self.length == WIDTH {
                self.length = 0;
                found(EventStamp::read(&self.begun));
            }
        }
    }
}

/// Counters shared by all clients, which update them once for each piece that they read.
pub(super) struct DeliveryCounters {
    /// The zero of the stamps' times.
    pub(super) began: Instant,
    /// How many events arrived at clients.
    pub(super) delivered: AtomicU64,
    /// Bytes of all streams.
    pub(super) bytes: AtomicU64,
    /// Events that a client got again, or after a later one.
    pub(super) duplicates: AtomicU64,
    /// Events that are missing before one that arrived.
    pub(super) gaps: AtomicU64,
    /// Streams that ended.
    pub(super) closed: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
}

impl DeliveryCounters {
    pub(super) fn new() -> Self {
        let (delivered, bytes, duplicates, gaps, closed) = Default::default();
        let latencies = Mutex::new(histogram());
        Self { began: Instant::now(), delivered, bytes, duplicates, gaps, closed, latencies }
    }

    pub(super) fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The latencies since the last call.
    pub(super) fn take_latencies(&self) -> Histogram<u64> {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut latencies, histogram())
    }
}

/// A histogram with a precision of 1 % that grows as needed.
pub(in crate::fanout) fn histogram() -> Histogram<u64> {
    Histogram::new(2).expect("two digits are a precision that it takes")
}

/// The position of one client in the stream.
#[derive(Default)]
pub(super) struct SubscriberReader {
    scanner: StampScanner,
    last: u64,
}

impl SubscriberReader {
    /// Counts the events in a piece of the stream.
    pub(super) fn read(&mut self, piece: &[u8], counters: &DeliveryCounters) {
        let now = counters.nanos();
        let mut latencies = counters.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut delivered, mut gaps, mut duplicates) = (0, 0, 0);
        let last = &mut self.last;
        self.scanner.scan(piece, |stamp| {
            let Some(EventStamp { number, nanos }) = stamp else { return gaps += 1 };
            delivered += 1;
            // Cannot fail: the histogram resizes itself.
            let _ = latencies.record(now.saturating_sub(nanos).max(1));
            if number <= *last {
                duplicates += 1;
            } else {
                gaps += number - *last - 1;
                *last = number;
            }
        });
        drop(latencies);
        counters.bytes.fetch_add(piece.len() as u64, Relaxed);
        counters.delivered.fetch_add(delivered, Relaxed);
        if gaps + duplicates > 0 {
            counters.gaps.fetch_add(gaps, Relaxed);
            counters.duplicates.fetch_add(duplicates, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(stamps: &[EventStamp]) -> Vec<u8> {
        let mut text = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        for stamp in stamps {
            text.extend(b"id: 7-1\ndata: {\"data\":\"");
            stamp.write(&mut text);
            text.extend(b"...\"}\n\n");
        }
        text
    }

    #[test]
    fn stamps_are_found_wherever_the_stream_is_cut() {
        let stamps = [1, 2, 3].map(|number| EventStamp { number, nanos: number * 1_000_000_007 });
        let text = stream(&stamps);
        for cut in 0..text.len() {
            let (mut scanner, mut found) = (StampScanner::default(), Vec::new());
            for piece in [&text[..cut], &text[cut..]] {
                scanner.scan(piece, |stamp| found.push(stamp));
            }
            assert_eq!(found, stamps.map(Some), "cut at {cut}");
        }
    }

    #[test]
    fn malformed_stamp_is_reported() {
        let mut found = Vec::new();
        let text = [b'#'; WIDTH];
        StampScanner::default().scan(&text, |stamp| found.push(stamp));
        assert_eq!(found, [None]);
    }

    #[test]
    fn subscriber_reader_counts_gaps_and_duplicates() {
        let counters = DeliveryCounters::new();
        let mut reader = SubscriberReader::default();
        for number in [1, 2, 2, 5, 4, 6] {
            let mut text = Vec::new();
            EventStamp { number, nanos: 0 }.write(&mut text);
            reader.read(&text, &counters);
        }
        let seen =
            [&counters.delivered, &counters.gaps, &counters.duplicates].map(|n| n.load(Relaxed));
        assert_eq!(seen, [6, 2, 2]);
        assert_eq!(counters.take_latencies().len(), 6);
        assert_eq!(counters.take_latencies().len(), 0);
    }
}
