//! A proxy and an upstream for each test.

#![allow(dead_code, reason = "every test file uses another part of it")]

pub(crate) mod client;
pub(crate) mod process;
pub(crate) mod tls;
pub(crate) mod upstream;

pub(crate) use process::Proxy;
pub(crate) use upstream::Upstream;

use std::time::Duration;

pub(crate) use crate::support::PATIENCE;

/// Fails the test unless the future completes within [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} in vain: {what}"),
    }
}

/// Repeats the check until it holds, within [`PATIENCE`].
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
