//! A proxy of one's own in front of an upstream of one's own.

#![allow(dead_code, reason = "every test file uses another part of it")]

pub(crate) mod client;
pub(crate) mod process;
pub(crate) mod tls;
pub(crate) mod upstream;

pub(crate) use process::Proxy;
pub(crate) use upstream::Upstream;

use std::time::Duration;

pub(crate) use crate::support::PATIENCE;

/// Within [`PATIENCE`], or the test fails.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {PATIENCE:?} in vain: {what}"),
    }
}

/// Asks again and again, within [`PATIENCE`].
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
