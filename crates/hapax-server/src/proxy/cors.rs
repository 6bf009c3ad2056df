//! CORS headers of the proxy's own responses. Without them a browser hides a problem from the page that
//! asked, which sees no more than "Failed to fetch". Preflights and all other responses are the
//! upstream's.

use hapax_http::ProblemKind;
use hyper::Response;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    HeaderMap, HeaderValue, ORIGIN, VARY,
};

use crate::settings::AllowedOrigins;

const EXPOSED: &str = "retry-after, idempotent-replayed, idempotency-expires, hapax-unprotected";

/// The site whose page sent a request, where it may read the proxy's own responses.
pub(crate) struct CorsReader {
    origin: HeaderValue,
    /// Whether the site is named in the settings, and not only allowed by `*`.
    named: bool,
}

impl CorsReader {
    pub(crate) fn of(allowed: &AllowedOrigins, request: &HeaderMap) -> Option<Self> {
        let origin = request.get(ORIGIN)?;
        let text = origin.to_str().ok()?;
        let named = allowed.names(text);
        (named || allowed.allow(text)).then(|| Self { origin: origin.clone(), named })
    }

    /// Lets the page read a problem. A replay has the stored headers of the first request, whose page
    /// may have been another one.
    pub(crate) fn allow<B>(self, response: &mut Response<B>) {
        let is_problem = response.extensions().get::<ProblemKind>().is_some();
        let headers = response.headers_mut();
        let stored = headers.get(ACCESS_CONTROL_ALLOW_ORIGIN).filter(|stored| *stored != "*");
        let is_foreign_replay = stored.is_some() && headers.contains_key("idempotent-replayed");
        if !is_problem && !is_foreign_replay {
            return;
        }
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin);
        headers.append(VARY, HeaderValue::from_static("origin"));
        if is_problem {
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
            if self.named {
                headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
            }
        }
    }
}
