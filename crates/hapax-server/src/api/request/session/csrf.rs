//! Requests with the cookie of a session must come from the console's own page: a browser sends the
//! cookie with requests of other pages too.

use axum::http::uri::Authority;
use axum::http::{Method, Uri};
use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::cookie::SessionId;
use super::hex;
use crate::api::request::headers::{HAPAX_CSRF, single_header};
use crate::problem::{Problem, ProblemKind};

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

impl SessionId {
    /// The value of `Hapax-Csrf`. It follows from the id, and the id does not follow from it.
    pub(crate) fn csrf(&self) -> String {
        hex(&Sha256::digest(format!("hapax-csrf:{}", self.text()).as_bytes()))
    }

    /// Refuses requests of other pages: their `Origin` is another site, or they lack `Hapax-Csrf`.
    pub(crate) fn check_page(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Problem> {
        check_origin(uri, headers)?;
        if [Method::GET, Method::HEAD].contains(method) {
            return Ok(());
        }
        let given = single_header(headers, &HAPAX_CSRF)?.map_or(&b""[..], |value| value.as_bytes());
        match bool::from(given.ct_eq(self.csrf().as_bytes())) {
            true => Ok(()),
            false => {
                let text = "header `Hapax-Csrf` is missing or wrong: a request that changes \
                            something with a session's cookie sends the `csrf` of GET /v1/session";
                Err(Problem::new(ProblemKind::Forbidden, text))
            }
        }
    }
}

/// Refuses an `Origin` that is not the host which the request names. A proxy in front may have replaced
/// `Host`; no page of another site can set `X-Forwarded-Host`.
pub(crate) fn check_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = single_header(headers, &ORIGIN)? else { return Ok(()) };
    let authority = |text: &str| text.trim().parse::<Authority>().ok();
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let origin = origin.and_then(|(_, host)| authority(host));
    let named = [&HOST, &X_FORWARDED_HOST].map(|name| headers.get(name));
    let named = named.into_iter().flatten().filter_map(|value| authority(value.to_str().ok()?));
    let mut named = named.chain(uri.authority().cloned());
    match origin.is_some_and(|origin| named.any(|host| host == origin)) {
        true => Ok(()),
        false => {
            let text = "`Origin` is another site; a session is for the console's own pages";
            Err(Problem::new(ProblemKind::Forbidden, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_refused(lines: &[(HeaderName, &str)]) -> bool {
        let headers = lines.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
        check_origin(&Uri::from_static("/"), &headers.collect()).is_err()
    }

    #[test]
    fn session_origin_is_the_own_host() {
        let host = (HOST, "hapax.example:8787");
        assert!(!is_refused(std::slice::from_ref(&host)), "no page sent it");
        for own in ["http://hapax.example:8787", "https://hapax.example:8787"] {
            assert!(!is_refused(&[host.clone(), (ORIGIN, own)]), "{own}");
        }
        for other in
            ["null", "http://hapax.example", "http://evil.example:8787", "", "hapax.example:8787"]
        {
            assert!(is_refused(&[host.clone(), (ORIGIN, other)]), "{other}");
        }
        let forwarded = (X_FORWARDED_HOST, "console.example");
        assert!(!is_refused(&[host, forwarded, (ORIGIN, "https://console.example")]));
    }

    #[test]
    fn session_csrf_value_is_checked_on_changes() {
        let (id, other) = (SessionId::random().unwrap(), SessionId::random().unwrap());
        let uri = Uri::from_static("/v1/queues/q/pause");
        let check = |method: Method, value: Option<String>| {
            let headers = value.map(|value| (HAPAX_CSRF, value.parse().unwrap()));
            id.check_page(&method, &uri, &headers.into_iter().collect()).is_ok()
        };
        assert!(check(Method::GET, None) && check(Method::HEAD, None));
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
            assert!(check(method.clone(), Some(id.csrf())));
            assert!(!check(method.clone(), None));
            assert!(!check(method.clone(), Some(other.csrf())));
        }
    }
}
