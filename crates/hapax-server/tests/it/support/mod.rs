//! Shared by all tests: the `hapax` process, stores, an HTTP client that can send wrong requests, waiting.

pub(crate) mod http;
mod process;
pub(crate) mod schema;
pub(crate) mod server;
pub(crate) mod store;

use std::time::Duration;

pub(crate) use process::{HapaxProcess, KillOnDrop, Output, hapax};

/// How long anything may take that the machine, and not the test, decides.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until `holds`.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    hapax_testkit::wait_for(what, WAIT_TIMEOUT, || holds().then_some(()));
}

/// Asserts that a text contains all of these parts.
#[track_caller]
pub(crate) fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

/// Fails the test unless the future completes within [`WAIT_TIMEOUT`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(WAIT_TIMEOUT, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {WAIT_TIMEOUT:?} in vain: {what}"),
    }
}

/// Repeats the probe until it gives a value, within [`WAIT_TIMEOUT`].
pub(crate) async fn until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    soon(what, async {
        loop {
            if let Some(value) = probe().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

/// Waits until the future's value is true: [`eventually`] for a test that has to await.
pub(crate) async fn until_true(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    until(what, async || holds().await.then_some(())).await;
}
