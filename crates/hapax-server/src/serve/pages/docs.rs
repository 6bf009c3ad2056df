//! `/docs`: a viewer for the OpenAPI document, served from files in the binary. The page loads
//! nothing from another host.

use std::sync::{Arc, LazyLock};

use axum::extract::Request;
use axum::response::{IntoResponse, Redirect, Response};
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use utoipa_swagger_ui::Config;

use crate::serve::problem::{Problem, ProblemKind};

static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    let config = Config::from("/openapi.json").validator_url("none").try_it_out_enabled(true);
    Arc::new(config)
});

/// The viewer sets inline styles; scripts, images and requests are limited to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// Redirects to `/docs/`: relative links in the viewer need the slash.
pub(crate) async fn front() -> Redirect {
    Redirect::permanent("/docs/")
}

/// One file of the viewer.
pub(crate) async fn file(request: Request) -> Response {
    let name = request.uri().path().trim_start_matches("/docs/");
    match utoipa_swagger_ui::serve(name, CONFIG.clone()) {
        Ok(Some(file)) => {
            let headers = [
                (CONTENT_TYPE, file.content_type.as_str()),
                (CONTENT_SECURITY_POLICY, POLICY),
                (CACHE_CONTROL, "no-cache"),
            ];
            (headers, file.bytes.into_owned()).into_response()
        }
        Ok(None) => {
            Problem::new(ProblemKind::NotFound, "the viewer has no such file").into_response()
        }
        Err(_) => Problem::new(ProblemKind::Internal, "the viewer cannot be shown").into_response(),
    }
}
