//! What tells one event from another, and when it was sent: a mark of fixed width inside the event,
//! found without parsing anything around it.

use std::io::Write;

/// `#0000000017@0000001234567890`: the number, and nanoseconds since the load began. Nothing else in
/// a stream has a `#`.
pub(super) const WIDTH: usize = 1 + NUMBER + 1 + TIME;
const NUMBER: usize = 10;
const TIME: usize = 16;

/// One event as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// 1 for the first.
    pub(super) number: u64,
    /// When it was sent.
    pub(super) nanos: u64,
}

impl Mark {
    pub(super) fn write(self, text: &mut Vec<u8>) {
        let Self { number, nanos } = self;
        // Writing to memory does not fail.
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

/// Finds the marks of one stream, however it is cut into pieces.
#[derive(Default)]
pub(super) struct Scanner {
    /// The beginning of a mark that the last piece ended with.
    begun: [u8; WIDTH],
    length: usize,
}

impl Scanner {
    /// Each mark of the piece, in order; `None` for one that is none.
    pub(super) fn scan(&mut self, mut piece: &[u8], mut found: impl FnMut(Option<Mark>)) {
        while !piece.is_empty() {
            if self.length == 0 {
                let Some(start) = memchr::memchr(b'#', piece) else { return };
                piece = &piece[start..];
            }
            let more = piece.len().min(WIDTH - self.length);
            let (mark, rest) = piece.split_at(more);
            self.begun[self.length..self.length + more].copy_from_slice(mark);
            self.length += more;
            piece = rest;
            if self.length == WIDTH {
                self.length = 0;
                found(Mark::read(&self.begun));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(marks: &[Mark]) -> Vec<u8> {
        let mut text = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        for mark in marks {
            text.extend(b"id: 7-1\ndata: {\"data\":\"");
            mark.write(&mut text);
            text.extend(b"...\"}\n\n");
        }
        text
    }

    #[test]
    fn marks_are_found_wherever_the_stream_is_cut() {
        let marks = [1, 2, 3].map(|number| Mark { number, nanos: number * 1_000_000_007 });
        let text = stream(&marks);
        for cut in 0..text.len() {
            let (mut scanner, mut found) = (Scanner::default(), Vec::new());
            for piece in [&text[..cut], &text[cut..]] {
                scanner.scan(piece, |mark| found.push(mark));
            }
            assert_eq!(found, marks.map(Some), "cut at {cut}");
        }
    }

    #[test]
    fn what_only_looks_like_a_mark_is_said() {
        let mut found = Vec::new();
        let text = [b'#'; WIDTH];
        Scanner::default().scan(&text, |mark| found.push(mark));
        assert_eq!(found, [None]);
    }
}
