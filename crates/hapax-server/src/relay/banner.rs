//! What is printed when the relay starts.

use std::io::{Write, stderr, stdout};
use std::net::SocketAddr;

use super::target;
use crate::settings::{RelaySettings, SecretUrl};

/// Says what goes where, and one line to try.
pub(super) fn print(
    settings: &RelaySettings,
    from: &SecretUrl,
    to: &SecretUrl,
    admin: Option<SocketAddr>,
) -> std::io::Result<()> {
    let mut out: Box<dyn Write> =
        if target::is_stdout(to) { Box::new(stderr().lock()) } else { Box::new(stdout().lock()) };
    let queue = settings.queue.as_str();
    writeln!(out, "hapax {} relay drains `{queue}`", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  from      {}", from.shown())?;
    writeln!(out, "  to        {}", to.shown())?;
    match admin {
        Some(admin) => writeln!(out, "  admin     http://{admin} (/healthz, /readyz, /metrics)")?,
        None => writeln!(out, "  admin     none; --admin ADDR serves /healthz, /readyz, /metrics")?,
    }
    let row = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{}')";
    writeln!(out, "  try       {row}")?;
    out.flush()
}
