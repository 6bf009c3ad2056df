//! `X-Line-Signature`: base64 of HMAC-SHA256 over the raw body.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hapax_core::queue::QueueName;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The header that carries the signature.
pub const SIGNATURE_HEADER: &str = "x-line-signature";

/// The channel's secret; during a rotation, the new secret and the old one.
///
/// ```
/// use hapax_line::ChannelSecrets;
/// let before = ChannelSecrets::new("old").unwrap();
/// let meanwhile = ChannelSecrets::new("new,old").unwrap();
/// let body = br#"{"destination":"U0","events":[]}"#;
/// assert!(meanwhile.verify(body, &before.sign(body)));
/// assert!(!ChannelSecrets::new("new").unwrap().verify(body, &before.sign(body)));
/// ```
#[derive(Clone)]
pub struct ChannelSecrets(Vec<Hmac<Sha256>>);

/// The text is neither one channel secret nor two.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "one channel secret is expected, or two with a comma between them while one is rotated: NEW,OLD"
)]
pub struct InvalidChannelSecrets;

impl ChannelSecrets {
    /// Parses one secret, or two separated by a comma; the first one signs.
    pub fn new(text: &str) -> Result<Self, InvalidChannelSecrets> {
        let secrets: Vec<_> = text.split(',').map(str::trim).collect();
        if secrets.len() > 2 || secrets.iter().any(|secret| secret.is_empty()) {
            return Err(InvalidChannelSecrets);
        }
        let key = |secret: &&str| Hmac::new_from_slice(secret.as_bytes());
        secrets
            .iter()
            .map(key)
            .collect::<Result<_, _>>()
            .map(Self)
            .map_err(|_| InvalidChannelSecrets)
    }

    /// The queue of the channel's events, named by the (first) secret: gateways of two channels on one store
    /// have two queues without a setting, and a restarted gateway finds its own before any webhook. The
    /// name is a part of an HMAC and does not reveal the secret.
    pub fn queue(&self) -> QueueName {
        queue_of(&self.0[0])
    }

    /// The queue of each secret, the new one's first.
    pub(crate) fn queues(&self) -> Vec<QueueName> {
        self.0.iter().map(queue_of).collect()
    }

    /// The signature of a body.
    pub fn sign(&self, body: &[u8]) -> String {
        let digest = self.0[0].clone().chain_update(body).finalize();
        STANDARD.encode(digest.into_bytes())
    }

    /// Whether one of the secrets signed this body. The comparison takes the same time wherever the
    /// signature differs.
    pub fn verify(&self, body: &[u8], signature: &str) -> bool {
        let Ok(signature) = STANDARD.decode(signature) else { return false };
        // Every secret is tried, so that the timing does not reveal which one signed.
        self.0.iter().fold(false, |known, secret| {
            secret.clone().chain_update(body).verify_slice(&signature).is_ok() | known
        })
    }
}

fn queue_of(secret: &Hmac<Sha256>) -> QueueName {
    let digest = secret.clone().chain_update("the queue of the channel").finalize().into_bytes();
    let digits: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    QueueName::new(&format!("line:{digits}")).expect("letters and digits are a valid name")
}

/// Shows only the number of secrets.
impl fmt::Debug for ChannelSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} of them)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "8b1b0f2c3d4e5f60718293a4b5c6d7e8";
    const BODY: &str = r#"{"destination":"Uf00db07","events":[]}"#;
    /// `printf %s BODY | openssl dgst -sha256 -hmac SECRET -binary | base64`
    const SIGNED: &str = "cAvPuLdjLa0gQ6VXmudg2fu2Hl68NfDrYaKYyY9nWn8=";

    fn verify(body: &[u8], signature: &str) -> bool {
        ChannelSecrets::new(SECRET).unwrap().verify(body, signature)
    }

    #[test]
    fn signature_equals_that_of_openssl() {
        assert_eq!(ChannelSecrets::new(SECRET).unwrap().sign(BODY.as_bytes()), SIGNED);
        assert!(verify(BODY.as_bytes(), SIGNED));
        let text = r#"{"destination":"Uf00db07","events":[{"type":"message","message":{"type":"text","text":"台北 🥚"}}]}"#;
        assert!(verify(text.as_bytes(), "To8tvT1fu7qCr9HtHLlVzNoENT4qTaHCLK7/v+M003U="));
    }

    #[test]
    fn signature_of_another_form_or_value_is_refused() {
        let doubled = format!("{SIGNED}{SIGNED}");
        let oversized = "A".repeat(1 << 20);
        for wrong in [
            "",
            "=",
            "🥚",
            "dpMLRluMejgEj0NbMNTfrdbWCrkMdYECBNkRgXrUXvg=",
            "cAvPuLdjLa0gQ6VXmudg2fu2Hl68NfDrYaKYyY9nWn8",
            "cAvPuLdjLa0gQ6VXmudg2fu2Hl68NfDrYaKYyY9nWn8= ",
            "CAvPuLdjLa0gQ6VXmudg2fu2Hl68NfDrYaKYyY9nWn8=",
            "cAvPuLdjLa0gQ6VXmudg2Q==",
            "700bcfb8b7632dad2043a5579ae760d9fbb61e5ebc35f0eb61a298c98f675a7f",
            &doubled,
            &oversized,
        ] {
            assert!(!verify(BODY.as_bytes(), wrong), "{}", &wrong[..wrong.len().min(80)]);
        }
    }

    #[test]
    fn signature_with_one_flipped_bit_is_refused() {
        for bit in 0..BODY.len() * 8 {
            let mut body = BODY.as_bytes().to_vec();
            body[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&body, SIGNED), "bit {bit}");
        }
        let digest = STANDARD.decode(SIGNED).unwrap();
        for bit in 0..digest.len() * 8 {
            let mut digest = digest.clone();
            digest[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(BODY.as_bytes(), &STANDARD.encode(digest)), "bit {bit}");
        }
        assert!(!verify(&BODY.as_bytes()[1..], SIGNED));
    }

    #[test]
    fn secrets_in_rotation_are_both_accepted_and_the_new_one_signs() {
        let [old, new, third] =
            ["old", "new", "third"].map(|text| ChannelSecrets::new(text).unwrap());
        let both = ChannelSecrets::new(" new , old ").unwrap();
        let body = BODY.as_bytes();
        assert_eq!(both.sign(body), new.sign(body));
        assert!(both.verify(body, &new.sign(body)) && both.verify(body, &old.sign(body)));
        assert!(!both.verify(body, &third.sign(body)));
    }

    #[test]
    fn secrets_have_a_queue_each() {
        let queues = |text| ChannelSecrets::new(text).unwrap().queues();
        assert_eq!(queues("new,old"), [queues("new"), queues("old")].concat());
        assert_ne!(queues("new"), queues("old"));
        let name = ChannelSecrets::new("new,old").unwrap().queue();
        assert_eq!((name.as_str().len(), &queues("new")[0]), ("line:".len() + 16, &name));
    }

    #[test]
    fn secrets_of_wrong_form_are_refused_and_none_is_shown() {
        for text in ["", " ", ",", "a,", ",a", "a,,b", "a,b,c"] {
            assert_eq!(ChannelSecrets::new(text).err(), Some(InvalidChannelSecrets), "{text:?}");
        }
        assert_eq!(format!("{:?}", ChannelSecrets::new("new,old").unwrap()), "Secrets(2 of them)");
    }
}
