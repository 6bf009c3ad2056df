use std::fmt;
use std::sync::Arc;

/// The secret half of a ticket. Whoever presents it is the owner.
///
/// It is made by the caller before the first attempt, so that a claim whose answer was lost on the
/// way can be asked again and recognises itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// The longest token that is accepted, in bytes.
    pub const MAX: usize = 255;

    /// 128 random bits from the operating system, in hexadecimal.
    ///
    /// # Panics
    /// Where the operating system has no randomness to give; no claim would be safe there.
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

    /// A token that a caller presents. It may be any text: a wrong one is told that it lost.
    pub fn presented(text: &str) -> Self {
        Self(text.into())
    }

    /// The text that goes over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Shows nothing of the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}
