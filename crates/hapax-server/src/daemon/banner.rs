//! The lines that a daemon prints when it starts.

use std::io::Write;
use std::net::SocketAddr;

/// Prints a title and a table of labels and values. A failure to print is no reason not to serve.
pub(crate) fn print_banner(mut out: impl Write, title: &str, lines: &[(&str, String)]) {
    let mut text = format!("hapax {} {title}\n", env!("CARGO_PKG_VERSION"));
    for (label, value) in lines {
        text.push_str(&format!("  {label:<9} {value}\n"));
    }
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The line about `--admin`, and the routes that are served there.
pub(crate) fn admin_line(admin: Option<SocketAddr>, routes: &str) -> (&'static str, String) {
    let value = match admin {
        Some(admin) => format!("http://{admin} ({routes})"),
        None => "none; --admin ADDR serves /healthz, /readyz, /metrics".to_owned(),
    };
    ("admin", value)
}
