//! Signed links: they let a browser follow certain jobs for a limited time, because `EventSource`
//! cannot send an `Authorization` header.
//!
//! A link is `BASE64URL(json) "." BASE64URL(HMAC-SHA256(secret, BASE64URL(json)))`, without padding,
//! and the JSON is `{"tenant","jobs":[["domain","job_id"],…],"expires":<seconds since 1970>}`.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hapax::{Clock, SystemClock, Tenant, Timestamp};
use hmac::{Hmac, KeyInit, Mac};
use hyper::Method;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::time::Instant;

use crate::settings::SigningSecret;

/// The jobs that a client may read without a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignedLink {
    pub(crate) tenant: String,
    pub(crate) jobs: Vec<(String, String)>,
    /// When the link expires, in seconds since 1970.
    pub(crate) expires: u64,
    /// The signature, which tells links apart; zeros before it is verified.
    #[serde(skip)]
    pub(crate) id: LinkId,
}

/// The signature of a link. Its holder cannot make another one.
pub(crate) type LinkId = [u8; 32];

impl SignedLink {
    /// The signed link, for `?access=`.
    pub(crate) fn sign(&self, secret: &SigningSecret) -> String {
        let json = serde_json::to_vec(self).expect("texts and numbers become JSON");
        let claims = BASE64_URL_SAFE_NO_PAD.encode(json);
        let signature = BASE64_URL_SAFE_NO_PAD.encode(mac(secret, &claims).finalize().into_bytes());
        format!("{claims}.{signature}")
    }

    /// The link, if this secret signed it (checked before anything is parsed) and it has not
    /// expired.
    pub(crate) fn verify(text: &str, secret: &SigningSecret) -> Option<Self> {
        let (claims, signature) = text.split_once('.')?;
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        // `verify_slice` compares in constant time.
        mac(secret, claims).verify_slice(&signature).ok()?;
        let json = BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?;
        let link: Self = serde_json::from_slice(&json).ok()?;
        let link = Self { id: signature.try_into().ok()?, ..link };
        (!link.time_left().is_zero()).then_some(link)
    }

    pub(crate) fn tenant(&self) -> Option<Tenant> {
        Tenant::new(&self.tenant).ok()
    }

    pub(crate) fn covers(&self, domain: &str, job_id: &str) -> bool {
        self.jobs.iter().any(|(d, j)| d == domain && j == job_id)
    }

    /// When a stream that was opened with this link ends.
    pub(super) fn stream_deadline(&self) -> Instant {
        Instant::now() + self.time_left()
    }

    fn time_left(&self) -> Duration {
        let year = Duration::from_secs(366 * 86_400);
        Timestamp(self.expires.saturating_mul(1000)).since(SystemClock.now()).min(year)
    }
}

fn mac(secret: &SigningSecret, claims: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.bytes()).expect("a key has any length");
    mac.update(claims.as_bytes());
    mac
}

/// Whether a signed link may stand for a token: only for reading jobs and their events.
pub(crate) fn accepts_signed_link(method: &Method, path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    matches!(*method, Method::GET | Method::HEAD)
        && matches!(
            parts[..],
            ["v1", "events", "stream"] | ["v1", "jobs", _, _] | ["v1", "jobs", _, _, "events"]
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingValue;

    fn link(expires: u64) -> SignedLink {
        let jobs = vec![("scan".to_owned(), "1".to_owned())];
        SignedLink { tenant: "shop".into(), jobs, expires, id: LinkId::default() }
    }

    #[test]
    fn signed_link_is_verified_and_expires() {
        let (secret, other) = ("a".repeat(32), "b".repeat(32));
        let (secret, other) =
            (SigningSecret::parse(&secret).unwrap(), SigningSecret::parse(&other).unwrap());
        let good = link(u64::MAX / 2000).sign(&secret);
        let verified = SignedLink::verify(&good, &secret).unwrap();
        assert!(
            verified.covers("scan", "1")
                && !verified.covers("scan", "2")
                && !verified.covers("1", "scan")
        );
        assert_eq!(SignedLink::verify(&good, &other), None);
        assert_eq!(
            SignedLink::verify(&link(1_000_000_000).sign(&secret), &secret),
            None,
            "expired"
        );
        let (claims, signature) = good.split_once('.').unwrap();
        let other_claims = link(u64::MAX / 1000).sign(&other);
        let (forged, _) = other_claims.split_once('.').unwrap();
        for wrong in [
            format!("{forged}.{signature}"),
            format!("{claims}."),
            claims.into(),
            format!("{claims}.{}", &signature[1..]),
            format!("{good}.x"),
            String::new(),
        ] {
            assert_eq!(SignedLink::verify(&wrong, &secret), None, "{wrong}");
        }
    }

    #[test]
    fn signed_link_is_accepted_for_jobs_only() {
        for path in ["/v1/events/stream", "/v1/jobs/scan/1", "/v1/jobs/scan/1/events"] {
            assert!(
                accepts_signed_link(&Method::GET, path) && accepts_signed_link(&Method::HEAD, path),
                "{path}"
            );
            assert!(!accepts_signed_link(&Method::POST, path), "{path}");
        }
        for path in ["/v1/events", "/v1/locks/k", "/v1/jobs/scan", "/v1/jobs/a/b/events/c", "/"] {
            assert!(!accepts_signed_link(&Method::GET, path), "{path}");
        }
    }
}
