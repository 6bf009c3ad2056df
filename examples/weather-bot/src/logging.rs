//! Logs on standard error. Nothing in them says who asked for what.

use std::io;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Starts logging, of panics too.
pub(crate) fn start() {
    let filter = Targets::new()
        // What drivers say in detail may contain keys and values.
        .with_default(LevelFilter::WARN)
        .with_target("hapax", LevelFilter::INFO)
        .with_target("example_weather_bot", LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).compact().with_ansi(false);
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    std::panic::set_hook(Box::new(|panic| {
        // Where it was, and not what it said: that may hold a name or a text.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a bug: the code panicked");
    }));
}
