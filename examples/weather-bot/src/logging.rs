//! Logging to standard error. No log line identifies a user or repeats a query.

use std::io;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Starts logging, panics included.
pub(crate) fn start() {
    let filter = Targets::new()
        // Debug output of drivers may contain keys and values.
        .with_default(LevelFilter::WARN)
        .with_target("hapax", LevelFilter::INFO)
        .with_target("example_weather_bot", LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).compact().with_ansi(false);
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    std::panic::set_hook(Box::new(|panic| {
        // Log the panic's location only: its message may contain a name or a text.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a bug: the code panicked");
    }));
}
