//! What is printed when the gateway starts.

use std::io::Write;
use std::net::SocketAddr;

use crate::settings::{LineSettings, ListenAddress, SettingSources};

/// Says what is taken in where, under which rules, where it goes, and one line to try.
pub(super) fn print(
    settings: &LineSettings,
    sources: &SettingSources<LineSettings>,
    listen: SocketAddr,
    admin: Option<SocketAddr>,
) -> std::io::Result<()> {
    let from = |flag: &str| sources.origin(flag).unwrap_or_default();
    let store = settings.store.shown();
    let upstream = settings.upstream.as_ref().map(|url| url.shown()).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    writeln!(out, "hapax {} line listens on http://{listen}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "  webhook   POST http://{listen}/line/webhook")?;
    writeln!(out, "  upstream  {upstream}")?;
    writeln!(out, "  LINE      {}", settings.api_base.shown())?;
    writeln!(out, "  store     {store} (from {})", from("store"))?;
    writeln!(out, "  rules     {}", rules(settings, &from))?;
    writeln!(out, "  serves    {}", served(settings))?;
    match admin {
        Some(admin) => writeln!(out, "  admin     http://{admin} ({})", on_admin(settings))?,
        None => writeln!(out, "  admin     none; --admin ADDR serves /healthz, /readyz, /metrics")?,
    }
    writeln!(out, "  try       hapax line simulate --to http://{listen}/line/webhook")?;
    out.flush()
}

fn rules(settings: &LineSettings, from: &impl Fn(&str) -> String) -> String {
    if !settings.lock.0 {
        return format!("none: nobody is locked (from {})", from("lock"));
    }
    let ttl = humantime::format_duration(settings.lock_ttl);
    let ttl = format!("{ttl} (from {})", from("lock-ttl"));
    match &settings.rules {
        Some(file) => format!("{}; where a mutex says no time, {ttl}", file.display()),
        None => format!("text, location and postback, one at a time of each user, for {ttl}"),
    }
}

/// What is on `--admin`.
fn on_admin(settings: &LineSettings) -> &'static str {
    match settings.admin.as_ref().is_some_and(ListenAddress::is_loopback) {
        true => "/healthz, /readyz, /metrics, /v1/queues/line",
        false => "/healthz, /readyz, /metrics",
    }
}

/// What is on the listener besides webhooks.
fn served(settings: &LineSettings) -> &'static str {
    match settings.listen.is_loopback() {
        true => "/healthz, /readyz; to this machine /metrics, /v1/queues/line",
        false => "/healthz, /readyz",
    }
}
