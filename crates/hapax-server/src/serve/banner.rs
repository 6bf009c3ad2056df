//! What is printed when the server starts.

use std::io::Write;
use std::net::SocketAddr;

use super::app::AppState;
use super::request::auth::AccessPolicy;
use crate::settings::{ServeSettings, SettingSources};

/// One line to try.
pub(crate) fn curl(app: &AppState) -> String {
    let token = match &app.access {
        AccessPolicy::LocalOnly(_) => "",
        AccessPolicy::Tokens(_) => " -H \"Authorization: Bearer $HAPAX_TOKEN\"",
    };
    let address = app.address.get().map_or_else(String::new, SocketAddr::to_string);
    format!("curl -i{token} -X POST http://{address}/v1/locks/demo")
}

/// Says what is served, on which store, to whom.
pub(crate) fn print(
    app: &AppState,
    sources: &SettingSources<ServeSettings>,
) -> std::io::Result<()> {
    let address = app.address.get().map_or_else(String::new, SocketAddr::to_string);
    let store = app.settings.store.shown();
    let place = sources.origin("store").unwrap_or_default();
    let callers = match &app.access {
        AccessPolicy::LocalOnly(_) => "this machine only, as no tokens are configured".to_owned(),
        AccessPolicy::Tokens(rules) => format!("whoever has one of {} tokens", rules.len()),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "hapax {} listens on http://{address}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  store    {store} (from {place})")?;
    writeln!(out, "  callers  {callers}")?;
    writeln!(
        out,
        "  serves   /v1/locks, /v1/records, /v1/commands, /v1/inbox, /v1/events, /v1/jobs, /v1/queues; /docs, /metrics"
    )?;
    writeln!(out, "  try      {}", curl(app))?;
    out.flush()
}
