//! Lines of standard input, read beside everything else.

use std::io::{BufRead, Read};

use tokio::sync::mpsc;

/// The longest line; the server's own limit is lower.
const LONGEST: u64 = 64 << 20;
/// How many lines are read ahead.
const AHEAD: usize = 2000;

/// A line that says something.
pub(super) struct Line {
    /// Counted from 1, empty ones included.
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
}

/// Lines as they come. An error of reading is the last one.
pub(super) fn read() -> mpsc::Receiver<Result<Line, String>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    // Not on the runtime: a terminal that nobody types at must not keep the process.
    std::thread::spawn(move || {
        let mut source = std::io::stdin().lock();
        for number in 1.. {
            let Some(line) = next(&mut source, number).transpose() else { return };
            let failed = line.is_err();
            let empty = line.as_ref().is_ok_and(|line| line.bytes.is_empty());
            if (!empty && sender.blocking_send(line).is_err()) || failed {
                return;
            }
        }
    });
    receiver
}

fn next(source: &mut impl BufRead, number: u64) -> Result<Option<Line>, String> {
    let mut bytes = Vec::new();
    let mut limited = source.take(LONGEST + 1);
    let read = limited.read_until(b'\n', &mut bytes);
    match read.map_err(|error| format!("line {number}: {error}"))? {
        0 => Ok(None),
        length if length as u64 > LONGEST => {
            Err(format!("line {number}: longer than {} MiB", LONGEST >> 20))
        }
        _ => Ok(Some(Line { number, bytes: bytes.trim_ascii().to_vec() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_the_last_one_needs_no_end() {
        let mut source = &b"{\"a\":1}\n\n {} \r\nlast"[..];
        let mut lines = Vec::new();
        for number in 1.. {
            match next(&mut source, number).unwrap() {
                Some(line) => lines.push(String::from_utf8(line.bytes).unwrap()),
                None => break,
            }
        }
        assert_eq!(lines, ["{\"a\":1}", "", "{}", "last"]);
    }
}
