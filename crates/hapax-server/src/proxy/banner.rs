//! What is printed when the proxy starts.

use std::io::Write;
use std::net::SocketAddr;

use super::route::ProxyRoute;
use crate::settings::ProxySettings;

/// Says where requests go, on which store, and one line to try.
pub(crate) fn print(
    settings: &ProxySettings,
    routes: &[ProxyRoute],
    listen: SocketAddr,
    admin: Option<SocketAddr>,
) -> std::io::Result<()> {
    let scheme = if settings.tls_cert.is_some() { "https" } else { "http" };
    let mut out = std::io::stdout().lock();
    writeln!(out, "hapax {} proxy listens on {scheme}://{listen}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  store     {}", settings.store.shown())?;
    for route in routes {
        writeln!(out, "  {:<9} {}", route.pattern.to_string(), route.target)?;
    }
    match admin {
        Some(admin) => writeln!(out, "  admin     http://{admin} (/healthz, /readyz, /metrics)")?,
        None => writeln!(out, "  admin     none; --admin ADDR serves /healthz, /readyz, /metrics")?,
    }
    let line = "-H 'Idempotency-Key: order-1' -d cups=2";
    writeln!(out, "  try       curl -i {line} {scheme}://{listen}/orders    (twice)")?;
    out.flush()
}
