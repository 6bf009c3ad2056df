//! The lines that the proxy prints when it starts.

use std::net::SocketAddr;

use super::route::ProxyRoute;
use crate::daemon::{admin_line, print_banner};
use crate::settings::ProxySettings;

/// Prints the routes, the store, and one line to try.
pub(super) fn print(
    settings: &ProxySettings,
    routes: &[ProxyRoute],
    listen: SocketAddr,
    admin: Option<SocketAddr>,
) {
    let scheme = if settings.tls_cert.is_some() { "https" } else { "http" };
    let patterns: Vec<_> = routes.iter().map(|route| route.pattern.to_string()).collect();
    let mut lines = vec![("store", settings.store.shown())];
    lines.extend(
        patterns.iter().map(String::as_str).zip(routes.iter().map(|r| r.target.to_string())),
    );
    lines.push(admin_line(admin, "/healthz, /readyz, /metrics"));
    let keyed = "-H 'Idempotency-Key: order-1' -d cups=2";
    lines.push(("try", format!("curl -i {keyed} {scheme}://{listen}/orders    (twice)")));
    print_banner(std::io::stdout(), &format!("proxy listens on {scheme}://{listen}"), &lines);
}
