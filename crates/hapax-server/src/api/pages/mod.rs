//! The OpenAPI document and its viewer at `/docs`, served from the binary. The viewer loads nothing from
//! another host.

pub(super) mod openapi;

use std::sync::{Arc, LazyLock};

use axum::extract::Request;
use axum::response::{IntoResponse, Redirect, Response};
use hyper::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue,
};
use utoipa_swagger_ui::Config;

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
