//! Signed links: the jobs that a link opens, and its expiry.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::json;
use sha2::Sha256;

use crate::Access;

/// The value of `?access=`. It needs only HMAC-SHA256 and the shared secret, no call to hapax.
#[expect(clippy::disallowed_methods, reason = "a link expires by the world's clock")]
pub(crate) fn sign(access: &Access, domain: &str, job: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let expires = (since + access.link_lifetime).as_secs();
    let claims = json!({ "tenant": access.tenant, "jobs": [[domain, job]], "expires": expires });
    let claims = BASE64_URL_SAFE_NO_PAD.encode(claims.to_string());
    let mut mac =
        Hmac::<Sha256>::new_from_slice(access.secret.as_bytes()).expect("any key will do");
    mac.update(claims.as_bytes());
    let signature = BASE64_URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
    format!("{claims}.{signature}")
}
