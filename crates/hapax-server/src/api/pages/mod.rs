//! The pages, all served from the binary: the OpenAPI document, its viewer at `/docs`, and the status
//! page at `/`. They load nothing from another host.

pub(super) mod openapi;

use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue,
};
use sha2::{Digest, Sha256};
use utoipa_swagger_ui::Config;

use crate::api::app::AppState;
use crate::api::request::auth::AccessPolicy;
use crate::problem::{Problem, ProblemKind};

static VIEWER_CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::from("/openapi.json").validator_url("none").try_it_out_enabled(true);
    Arc::new(config)
});

/// The viewer sets inline styles; scripts, images and requests are limited to this server.
const DOCS_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// Redirects to `/docs/`: relative links in the viewer need the slash.
pub(crate) async fn docs_redirect() -> Redirect {
    Redirect::permanent("/docs/")
}

/// One file of the viewer.
pub(crate) async fn docs_file(request: Request) -> Response {
    let name = request.uri().path().trim_start_matches("/docs/");
    match utoipa_swagger_ui::serve(name, VIEWER_CONFIG.clone()) {
        Ok(Some(file)) => {
            let headers = [
                (CONTENT_TYPE, file.content_type.as_str()),
                (CONTENT_SECURITY_POLICY, DOCS_POLICY),
                (CACHE_CONTROL, "no-cache"),
            ];
            let mut response = (headers, file.bytes.into_owned()).into_response();
            if file.gzpipped {
                // Every browser accepts it, and only browsers show the viewer.
                response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        }
        Ok(None) => {
            Problem::new(ProblemKind::NotFound, "the viewer has no such file").into_response()
        }
        Err(_) => Problem::new(ProblemKind::Internal, "the viewer cannot be shown").into_response(),
    }
}

const STATUS_PAGE: &str = include_str!("status.html");
const STATUS_STYLE: &str = include_str!("status.css");

/// Allows this page and its one style, nothing else.
static STATUS_POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = BASE64_STANDARD.encode(Sha256::digest(STATUS_STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    )
});

/// The status page.
pub(crate) async fn status_page(State(app): State<AppState>) -> Response {
    let (state, class, reason) = match app.readiness.failure() {
        None => ("Ready", "good", String::new()),
        Some((_, reason)) => ("Not ready", "bad", reason),
    };
    let callers = match &app.access {
        AccessPolicy::LocalOnly(_) => "this machine, without a token",
        AccessPolicy::Tokens(_) => "clients with a token",
    };
    let uptime =
        humantime::format_duration(std::time::Duration::from_secs(app.started.elapsed().as_secs()));
    let page = STATUS_PAGE
        .replace("{{style}}", STATUS_STYLE)
        .replace("{{state}}", state)
        .replace("{{class}}", class)
        .replace("{{reason}}", &escaped(&reason))
        .replace("{{store}}", app.store.name())
        .replace("{{version}}", env!("CARGO_PKG_VERSION"))
        .replace("{{uptime}}", &uptime.to_string())
        .replace("{{callers}}", callers)
        .replace("{{curl}}", &escaped(&app.example()));
    ([(CONTENT_SECURITY_POLICY, STATUS_POLICY.as_str())], Html(page)).into_response()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
