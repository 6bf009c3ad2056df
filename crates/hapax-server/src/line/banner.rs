//! The lines that the gateway prints when it starts.

use std::net::SocketAddr;

use crate::daemon::{admin_line, print_banner};
use crate::settings::{LineSettings, ListenAddress, SettingSources};

/// Prints the addresses, the store, the rules, and one line to try.
pub(super) fn print(
    settings: &LineSettings,
    sources: &SettingSources<LineSettings>,
    listen: SocketAddr,
    admin: Option<SocketAddr>,
) {
    let from = |flag: &str| sources.origin(flag).unwrap_or_default();
    let upstream = settings.upstream.as_ref().map(|url| url.shown()).unwrap_or_default();
    let lines = [
        ("webhook", format!("POST http://{listen}/line/webhook")),
        ("upstream", upstream),
        ("LINE", settings.api_base.shown()),
        ("store", format!("{} (from {})", settings.store.shown(), from("store"))),
        ("rules", rules(settings, &from)),
        ("serves", served(settings).to_owned()),
        admin_line(admin, served_on_admin(settings)),
        ("try", format!("hapax line simulate --to http://{listen}/line/webhook")),
    ];
    print_banner(std::io::stdout(), &format!("line listens on http://{listen}"), &lines);
}

fn rules(settings: &LineSettings, from: &impl Fn(&str) -> String) -> String {
    if !settings.lock.0 {
        return format!("none: no user is locked (from {})", from("lock"));
    }
    let ttl = humantime::format_duration(settings.lock_ttl);
    let ttl = format!("{ttl} (from {})", from("lock-ttl"));
    match &settings.rules {
        Some(file) => format!("{}; a mutex without a time lasts {ttl}", file.display()),
        None => format!("text, location and postback, one at a time of each user, for {ttl}"),
    }
}

fn served_on_admin(settings: &LineSettings) -> &'static str {
    match settings.admin.as_ref().is_some_and(ListenAddress::is_loopback) {
        true => "/healthz, /readyz, /metrics, /v1/queues/line",
        false => "/healthz, /readyz, /metrics",
    }
}

/// The routes of the listener besides webhooks.
fn served(settings: &LineSettings) -> &'static str {
    match settings.listen.is_loopback() {
        true => "/healthz, /readyz; to this machine /metrics, /v1/queues/line",
        false => "/healthz, /readyz",
    }
}
