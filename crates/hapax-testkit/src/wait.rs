//! Bounded waiting.

use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(10);

/// Long enough for a loaded machine, short enough that a hung test is noticed.
pub(crate) const READY: Duration = Duration::from_secs(120);

/// Asks `probe` again and again until it gives a value, and returns that.
///
/// # Panics
///
/// When `limit` has passed without a value; the message starts with `what`.
pub fn wait_for<T>(what: &str, limit: Duration, probe: impl FnMut() -> Option<T>) -> T {
    wait_or_explain(what, limit, probe, String::new)
}

/// Like [`wait_for`], with something to add to the panic message, such as a log's end.
pub(crate) fn wait_or_explain<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Option<T>,
    explain: impl FnOnce() -> String,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        if Instant::now() >= deadline {
            panic!("waited {limit:?} in vain: {what}\n{}", explain());
        }
        thread::sleep(PAUSE);
    }
}
