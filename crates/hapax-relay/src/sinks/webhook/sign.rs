//! Signatures as in Standard Webhooks (standardwebhooks.com), which offers libraries to verify
//! them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A secret that is shared with the receiver.
#[derive(Clone)]
pub(crate) struct Secret(Hmac<Sha256>);

impl Secret {
    /// Decodes the base64 after `whsec_`; any other text is used as it is.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let bytes = match text.strip_prefix("whsec_") {
            Some(encoded) => STANDARD.decode(encoded).ok()?,
            None => text.as_bytes().to_vec(),
        };
        (!bytes.is_empty()).then(|| Hmac::new_from_slice(&bytes).ok().map(Self)).flatten()
    }

    /// `v1,` followed by the signature over `{id}.{seconds}.{payload}`.
    pub(crate) fn sign(&self, id: &str, seconds: u64, payload: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(payload);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_the_standards_own_example() {
        let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let signature = secret.sign(id, 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn empty_or_malformed_secret_is_refused() {
        assert!(Secret::new("").is_none() && Secret::new("whsec_?").is_none());
        assert!(Secret::new("plain text").is_some());
    }
}
