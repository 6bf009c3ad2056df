//! `/`: the status of the server on one self-contained page.

use std::sync::LazyLock;

use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::CONTENT_SECURITY_POLICY;
use sha2::{Digest, Sha256};

use crate::serve::app::AppState;
use crate::serve::request::auth::AccessPolicy;

const PAGE: &str = include_str!("status.html");
const STYLE: &str = include_str!("status.css");

/// Allows this page and its one style, nothing else.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = BASE64_STANDARD.encode(Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    )
});

/// The status page.
pub(crate) async fn page(State(app): State<AppState>) -> Response {
    let reason = app.readiness.why_not();
    let (state, class) = if reason.is_none() { ("Ready", "good") } else { ("Not ready", "bad") };
    let callers = match &app.access {
        AccessPolicy::LocalOnly(_) => "this machine, without a token",
        AccessPolicy::Tokens(_) => "whoever has a token",
    };
    let uptime =
        humantime::format_duration(std::time::Duration::from_secs(app.started.elapsed().as_secs()));
    let page = PAGE
        .replace("{{style}}", STYLE)
        .replace("{{state}}", state)
        .replace("{{class}}", class)
        .replace("{{reason}}", &escaped(reason.as_deref().unwrap_or_default()))
        .replace("{{store}}", app.store.name())
        .replace("{{version}}", env!("CARGO_PKG_VERSION"))
        .replace("{{uptime}}", &uptime.to_string())
        .replace("{{callers}}", callers)
        .replace("{{curl}}", &escaped(&crate::serve::banner::curl(&app)));
    ([(CONTENT_SECURITY_POLICY, POLICY.as_str())], Html(page)).into_response()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
