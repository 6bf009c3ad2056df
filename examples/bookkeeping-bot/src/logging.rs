use std::io;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Log lines on standard error, of panics too. Drivers only warn: what they say in detail may be
/// personal.
pub(crate) fn start() {
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("hapax", LevelFilter::INFO)
        .with_target("bookkeeping_bot", LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    // A second start in one process keeps the first one.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    std::panic::set_hook(Box::new(|panic| {
        // Where it was, and not what it said: that may hold a key or a value.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a bug: the code panicked");
    }));
}
