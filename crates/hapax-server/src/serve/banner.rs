//! The lines that the server prints when it starts.

use std::net::SocketAddr;

use super::app::AppState;
use super::request::auth::AccessPolicy;
use crate::daemon::print_banner;
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

/// Prints the address, the store, the callers, and one line to try.
pub(crate) fn print(app: &AppState, sources: &SettingSources<ServeSettings>) {
    let address = app.address.get().map_or_else(String::new, SocketAddr::to_string);
    let store = app.settings.store.shown();
    let origin = sources.origin("store").unwrap_or_default();
    let callers = match &app.access {
        AccessPolicy::LocalOnly(_) => "this machine only, as no tokens are configured".to_owned(),
        AccessPolicy::Tokens(rules) => format!("whoever has one of {} tokens", rules.len()),
    };
    let served = "/v1/locks, /v1/records, /v1/commands, /v1/inbox, /v1/events, /v1/jobs, \
                  /v1/queues; /docs, /metrics";
    let lines = [
        ("store", format!("{store} (from {origin})")),
        ("callers", callers),
        ("serves", served.to_owned()),
        ("try", curl(app)),
    ];
    print_banner(std::io::stdout(), &format!("listens on http://{address}"), &lines);
}
