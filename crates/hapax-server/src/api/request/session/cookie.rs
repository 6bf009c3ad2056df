//! The cookie of a console session.

use hyper::header::{COOKIE, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use super::{SESSION_TTL, hex};
use crate::problem::{Problem, ProblemKind};

const NAME: &str = "hapax_session";
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The secret of a session: 256 random bits in hexadecimal.
#[derive(Clone)]
pub(crate) struct SessionId(String);

impl SessionId {
    pub(crate) fn random() -> Result<Self, Problem> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|_| {
            Problem::new(ProblemKind::Internal, "the system has no random numbers for a session")
        })?;
        Ok(Self(hex(&bytes)))
    }

    /// The id in the `Cookie` headers, which HTTP/2 may split. A cookie that is there twice is refused:
    /// a site beneath the same domain may have planted one of them.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, Problem> {
        let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
        let mut values = pairs.filter(|(name, _)| name.trim() == NAME).map(|(_, id)| id.trim());
        let Some(id) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(Problem::invalid(format!(
                "the cookie `{NAME}` is there twice; delete the cookies of this site"
            )));
        }
        let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        Ok(is_id.then(|| Self(id.to_owned())))
    }

    /// The part of the id that the store may know.
    pub(crate) fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// `Set-Cookie` of a new session; only over TLS if the request came so.
    pub(crate) fn set_cookie(&self, request: &HeaderMap) -> Option<HeaderValue> {
        set_cookie(&self.0, SESSION_TTL.as_secs(), request)
    }
}

/// `Set-Cookie` that deletes the cookie.
pub(crate) fn clear_cookie(request: &HeaderMap) -> Option<HeaderValue> {
    set_cookie("", 0, request)
}

fn set_cookie(value: &str, seconds: u64, request: &HeaderMap) -> Option<HeaderValue> {
    let secure = if came_over_tls(request) { "; Secure" } else { "" };
    let cookie =
        format!("{NAME}={value}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}");
    let mut cookie = HeaderValue::try_from(cookie).ok()?;
    cookie.set_sensitive(true);
    Some(cookie)
}

/// Whether a proxy in front says that the client used HTTPS.
fn came_over_tls(headers: &HeaderMap) -> bool {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let first = |list: &str| list.split(',').next().unwrap_or_default().trim().to_ascii_lowercase();
    let forwarded = text(&FORWARDED).map(first).unwrap_or_default();
    let is_https = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or_default();
        name.trim() == "proto" && value.trim().trim_matches('"') == "https"
    };
    text(&X_FORWARDED_PROTO).is_some_and(|proto| first(proto) == "https")
        || forwarded.split(';').any(is_https)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn session_cookie_is_found_among_others() {
        let id = "ab".repeat(32);
        let found = |lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| (COOKIE, *line)).collect();
            let id = SessionId::from_headers(&headers(&lines));
            id.map(|id| id.map(|id| id.0)).map_err(|problem| problem.kind())
        };
        assert_eq!(found(&["a=b"]), Ok(None));
        assert_eq!(found(&[&format!("a=b; hapax_session={id};c=d")]), Ok(Some(id.clone())));
        assert_eq!(found(&["a=b", &format!("hapax_session={id}")]), Ok(Some(id.clone())));
        let twice = format!("hapax_session={id}; hapax_session={}", "cd".repeat(32));
        assert_eq!(found(&[&twice]), Err(ProblemKind::InvalidRequest));
        for wrong in ["", "ab", &"xy".repeat(32), &format!("{id}00")] {
            assert_eq!(found(&[&format!("hapax_session={wrong}")]), Ok(None), "{wrong}");
        }
    }

    #[test]
    fn session_cookie_is_secure_behind_a_tls_proxy() {
        let id = SessionId::random().unwrap();
        let secure = |lines: &[(HeaderName, &str)]| {
            let cookie = id.set_cookie(&headers(lines)).unwrap();
            let cookie = cookie.to_str().unwrap().to_owned();
            assert!(cookie.contains("; HttpOnly; SameSite=Strict; Path=/; Max-Age=43200"));
            cookie.ends_with("; Secure")
        };
        assert!(!secure(&[]));
        assert!(!secure(&[(X_FORWARDED_PROTO, "http")]));
        assert!(secure(&[(X_FORWARDED_PROTO, "https")]));
        assert!(secure(&[(X_FORWARDED_PROTO, "HTTPS, http")]));
        assert!(secure(&[(FORWARDED, "for=1.2.3.4;proto=https")]));
        assert!(!secure(&[(FORWARDED, "for=1.2.3.4;proto=http, proto=https")]));
    }
}
