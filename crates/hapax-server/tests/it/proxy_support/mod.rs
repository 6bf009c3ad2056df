//! A proxy and an upstream for each test.

pub(crate) mod client;
pub(crate) mod process;
pub(crate) mod tls;
pub(crate) mod upstream;

pub(crate) use crate::support::{eventually, soon, until};
pub(crate) use process::Proxy;
pub(crate) use upstream::Upstream;

/// A proxy on memory with these flags, and an upstream behind it.
pub(crate) async fn proxied(flags: &[&str]) -> (Upstream, Proxy) {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url(), "memory:", flags);
    (upstream, proxy)
}
