//! Bounded waiting.

use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(10);

/// Long enough for a server to start on a busy machine, short enough that a hung test is noticed.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Calls `probe` repeatedly until it returns a value.
///
/// # Panics
///
/// When `timeout` has passed without a value; the message contains `what`.
pub fn wait_for<T>(what: &str, timeout: Duration, probe: impl FnMut() -> Option<T>) -> T {
    wait_or_explain(what, timeout, probe, String::new)
}

/// Like [`wait_for`], with an addition to the panic message, such as the end of a log.
pub(crate) fn wait_or_explain<T>(
    what: &str,
    timeout: Duration,
    mut probe: impl FnMut() -> Option<T>,
    explain: impl FnOnce() -> String,
) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        if Instant::now() >= deadline {
            panic!("timed out after {timeout:?}: {what}\n{}", explain());
        }
        thread::sleep(PAUSE);
    }
}
