use std::io;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Starts logging to standard error, panics included. Drivers log warnings only, because their
/// details may be personal.
pub(crate) fn start() {
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("hapax", LevelFilter::INFO)
        .with_target("bookkeeping_bot", LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    // If the process has a subscriber already, keep it.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    std::panic::set_hook(Box::new(|panic| {
        // Log the panic's location only: its message may contain a key or a value.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a bug: the code panicked");
    }));
}
