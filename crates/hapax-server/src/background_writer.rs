//! Writes lines to standard error on a thread of their own, so that no request waits for whoever reads them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hapax::metric_names;
use metrics::counter;

/// The bytes of lines that may wait to be written: some seconds of a busy server.
const CAPACITY: usize = 4 << 20;
/// Room beyond it that each higher importance has for itself.
const RESERVED: usize = 512 << 10;
/// How many bytes are written at once, where so many wait.
const BATCH_BYTES: usize = 64 << 10;
/// How long an ending process waits until the last lines are written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after which writing is tried again, where standard error was made non-blocking by a program that shares it.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

static STDERR: OnceLock<Option<BackgroundWriter>> = OnceLock::new();

/// Which lines are dropped first when nobody reads them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LineImportance {
    Ordinary,
    /// Errors, panics, and the number of dropped lines.
    Error,
    /// The actions of operators.
    Audit,
}

impl LineImportance {
    /// How many bytes may wait, so that a line of this importance is still taken.
    fn capacity(self) -> usize {
        match self {
            Self::Ordinary => CAPACITY,
            Self::Error => CAPACITY + RESERVED,
            Self::Audit => CAPACITY + 2 * RESERVED,
        }
    }
}

/// Has a whole line written to standard error, without waiting for it.
pub(crate) fn write_to_stderr(line: &[u8], importance: LineImportance) {
    let start = || BackgroundWriter::start(io::stderr(), report_dropped_lines).ok();
    match STDERR.get_or_init(start) {
        Some(writer) => writer.push(line, importance),
        // The system has no thread for it.
        None => drop(io::stderr().write_all(line)),
    }
}

/// Waits until the lines so far are written, for a limited time: perhaps nobody reads them.
pub(crate) fn flush_stderr() {
    if let Some(Some(writer)) = STDERR.get() {
        writer.flush(FLUSH_TIMEOUT);
    }
}

/// Prints to a terminal or a pipe, for at most a second: perhaps nobody reads it.
pub(crate) fn print_with_timeout(mut out: impl Write + Send + 'static, text: String) {
    let (done, printed) = std::sync::mpsc::channel();
    let print = move || {
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        let _ = done.send(());
    };
    if std::thread::Builder::new().spawn(print).is_ok() {
        let _ = printed.recv_timeout(Duration::from_secs(1));
    }
}

/// An error, so that it is shown at every `--log-level`.
fn report_dropped_lines(dropped: u64) {
    tracing::error!(dropped, "lines of this log are missing above: nobody read it in time");
}

struct BackgroundWriter(Arc<SharedLines>);

#[derive(Default)]
struct SharedLines {
    waiting: Mutex<WaitingLines>,
    /// Signalled when a first line waits.
    filled: Condvar,
    /// Signalled when lines were written.
    written: Condvar,
}

#[derive(Default)]
struct WaitingLines {
    lines: VecDeque<Box<[u8]>>,
    /// The bytes of `lines`, and of those that are being written.
    bytes: usize,
    /// The lines that were dropped, and not reported yet.
    dropped: u64,
}

impl BackgroundWriter {
    /// Starts the thread. It calls `report` with the number of dropped lines when there is room again, for a line about it.
    fn start(
        out: impl Write + Send + 'static,
        report: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::<SharedLines>::default();
        let written = shared.clone();
        let thread = std::thread::Builder::new().name("stderr".into());
        thread.spawn(move || written.write_forever(out, report))?;
        Ok(Self(shared))
    }

    /// Takes a line, or drops it where too many bytes wait.
    fn push(&self, line: &[u8], importance: LineImportance) {
        let mut waiting = self.0.lock();
        if waiting.bytes + line.len() > importance.capacity() {
            waiting.dropped += 1;
            drop(waiting);
            counter!(metric_names::LOG_DROPPED).increment(1);
            return;
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.into());
        let is_first = waiting.lines.len() == 1;
        drop(waiting);
        if is_first {
            self.0.filled.notify_one();
        }
    }

    /// Waits until no line waits; false if that takes too long.
    fn flush(&self, timeout: Duration) -> bool {
        let waits = |waiting: &mut WaitingLines| waiting.bytes > 0;
        let waited = self.0.written.wait_timeout_while(self.0.lock(), timeout, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl SharedLines {
    fn lock(&self) -> MutexGuard<'_, WaitingLines> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_forever(&self, mut out: impl Write, report: impl Fn(u64)) {
        let mut batch = Vec::new();
        loop {
            self.take(&mut batch);
            // Lines of a log that was closed are lost, as they are with every program.
            let _ = write_all(&mut out, &batch);
            let dropped = self.dropped_before_room(batch.len());
            if dropped > 0 {
                report(dropped);
            }
            // Only now, so that a flush waits for the line of the report.
            self.lock().bytes -= batch.len();
            self.written.notify_all();
        }
    }

    /// Waits for lines, and moves some of them into the batch.
    fn take(&self, batch: &mut Vec<u8>) {
        batch.clear();
        let is_empty = |waiting: &mut WaitingLines| waiting.lines.is_empty();
        let waiting = self.filled.wait_while(self.lock(), is_empty);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        while let Some(line) = waiting.lines.pop_front() {
            batch.extend_from_slice(&line);
            if batch.len() >= BATCH_BYTES {
                break;
            }
        }
    }

    /// The lines that were dropped, once half of the room is free again: a report after each batch would itself fill the log.
    fn dropped_before_room(&self, written: usize) -> u64 {
        let mut waiting = self.lock();
        match waiting.bytes - written <= CAPACITY / 2 {
            true => std::mem::take(&mut waiting.dropped),
            false => 0,
        }
    }
}

fn write_all(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY_PAUSE),
            Err(error) => return Err(error),
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

    /// An output whose reader takes one write at a time, when the test says so.
    struct SteppedOutput {
        step: Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for SteppedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.step.recv();
            self.written.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A writer whose report of dropped lines is a line of its own, and what it wrote so far.
    fn stepped() -> (Arc<BackgroundWriter>, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (steps, step) = channel();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let out = SteppedOutput { step, written: written.clone() };
        let own = Arc::<OnceLock<Arc<BackgroundWriter>>>::default();
        let reported_to = own.clone();
        let report = move |dropped| {
            let line = format!("dropped {dropped}\n");
            reported_to.get().unwrap().push(line.as_bytes(), LineImportance::Error);
        };
        let writer = Arc::new(BackgroundWriter::start(out, report).unwrap());
        let _ = own.set(writer.clone());
        (writer, steps, written)
    }

    fn filled_with_ordinary_lines(writer: &BackgroundWriter) -> usize {
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        let count = CAPACITY / line.len();
        (0..count).for_each(|_| writer.push(&line, LineImportance::Ordinary));
        count
    }

    #[test]
    fn background_writer_keeps_the_order_of_lines() {
        let (writer, steps, written) = stepped();
        let lines: Vec<_> = (0..1000).map(|n| format!("line {n}\n")).collect();
        lines.iter().for_each(|line| writer.push(line.as_bytes(), LineImportance::Ordinary));
        drop(steps);
        assert!(writer.flush(WAIT_TIMEOUT));
        assert_eq!(String::from_utf8(written.lock().unwrap().clone()).unwrap(), lines.concat());
    }

    #[test]
    fn background_writer_reports_dropped_lines_once_there_is_room() {
        let (writer, steps, written) = stepped();
        filled_with_ordinary_lines(&writer);
        (0..7).for_each(|_| writer.push(b"too much\n", LineImportance::Ordinary));
        // Until half of the room is free nothing is reported.
        for _ in 0..CAPACITY / BATCH_BYTES / 4 {
            steps.send(()).unwrap();
        }
        writer.push(b"after\n", LineImportance::Error);
        drop(steps);
        assert!(writer.flush(WAIT_TIMEOUT));
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert!(!written.contains("too much"));
        assert_eq!(written.matches("dropped 7\n").count(), 1);
        assert!(written.find("after\n") < written.find("dropped 7\n"));
    }

    #[test]
    fn background_writer_has_room_for_audit_lines_when_it_is_full() {
        let (writer, steps, written) = stepped();
        filled_with_ordinary_lines(&writer);
        for _ in 0..RESERVED {
            writer.push(b"error\n", LineImportance::Error);
        }
        writer.push(b"audit\n", LineImportance::Audit);
        drop(steps);
        assert!(writer.flush(WAIT_TIMEOUT));
        let written = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let errors = written.matches("error\n").count();
        assert!(written.contains("audit\n") && (1..RESERVED).contains(&errors), "{errors}");
    }

    #[test]
    fn background_writer_gives_up_a_flush_that_nobody_reads() {
        let (writer, _steps, written) = stepped();
        writer.push(b"line\n", LineImportance::Audit);
        assert!(!writer.flush(Duration::from_millis(50)));
        assert!(written.lock().unwrap().is_empty());
    }

    #[test]
    fn print_with_timeout_gives_up_what_nobody_reads() {
        let (steps, step) = channel();
        let out = SteppedOutput { step, written: Arc::default() };
        print_with_timeout(out, "banner\n".into());
        drop(steps);
    }
}
