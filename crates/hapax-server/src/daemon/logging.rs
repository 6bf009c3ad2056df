//! Structured logs on standard error.

use std::io;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

use crate::background_writer::{LineImportance, write_to_stderr};
use crate::settings::{LogFormat, LogLevel};

/// The target of audit lines (the actions of operators), which are written at every level.
pub(crate) const AUDIT: &str = "audit";

/// Starts logging audit lines alone, for a command that ends when it is done and may wait for its reader.
pub(crate) fn start_audit() {
    let filter = Targets::new().with_target(AUDIT, LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).compact().with_ansi(false);
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
}

/// Starts logging, of panics too. Drivers log warnings at most: their details may contain keys.
pub(super) fn start(format: LogFormat, level: LogLevel) {
    let filter = Targets::new()
        .with_default(level.0.min(LevelFilter::WARN))
        .with_target("hapax", level.0)
        // lapin logs returned messages with their content; hapax logs the return itself.
        .with_target("lapin", LevelFilter::OFF)
        .with_target(AUDIT, LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(LogLines);
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Pretty => {
            let colours = io::IsTerminal::is_terminal(&io::stderr());
            lines.compact().with_target(false).with_ansi(colours).boxed()
        }
    };
    // The first start in a process wins.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    std::panic::set_hook(Box::new(|panic| {
        // The location alone: the message may hold a key or a value.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a bug: the code panicked");
    }));
}

/// Gives the lines of the log to the thread that writes them.
struct LogLines;

struct LogLine(LineImportance);

impl MakeWriter<'_> for LogLines {
    type Writer = LogLine;

    fn make_writer(&self) -> LogLine {
        LogLine(LineImportance::Ordinary)
    }

    fn make_writer_for(&self, event: &Metadata<'_>) -> LogLine {
        LogLine(if event.target() == AUDIT {
            LineImportance::Audit
        } else if *event.level() == Level::ERROR {
            LineImportance::Error
        } else {
            LineImportance::Ordinary
        })
    }
}

impl io::Write for LogLine {
    /// Takes a whole line: `tracing_subscriber` writes each event at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_to_stderr(line, self.0);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
