//! What all tests share: the `hapax` process, an HTTP client that can send wrong requests, waiting.

pub(crate) mod http;
mod process;
pub(crate) mod server;

use std::time::Duration;

pub(crate) use process::{HapaxProcess, hapax};

/// How long anything may take that the machine, and not the test, decides.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds`.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    hapax_testkit::wait_for(what, PATIENCE, || holds().then_some(()));
}
