use std::fmt;
use std::sync::Arc;

/// The secret that proves ownership of a claim or of leased items.
///
/// The caller creates the token before the first call, so that a claim whose answer was lost can be
/// repeated: the store recognises the token and returns the same grant.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// The maximum length in bytes.
    pub const MAX: usize = 255;

    /// 128 random bits from the operating system, in hexadecimal.
    ///
    /// # Panics
    /// If the operating system provides no randomness: without it no claim would be safe.
    pub fn random() -> Self {
        use fmt::Write;
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes).expect("the operating system provides randomness");
        let mut text = String::with_capacity(32);
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Self(text.into())
    }

    /// A token that a caller presents. Any text is allowed: a step with a wrong token is lost.
    pub fn presented(text: &str) -> Self {
        Self(text.into())
    }

    /// The token as text, as it is sent over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Hides the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}
