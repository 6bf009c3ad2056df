use std::fmt;
use std::sync::Arc;

use crate::hex::hex;

/// The secret that proves ownership of a claim or of leased items.
///
/// The caller creates the token before the first call, so that a claim whose answer was lost can be
/// repeated: the store recognises the token and returns the same grant.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token(Arc<str>);

impl Token {
    /// The maximum length in bytes.
    pub const MAX: usize = 255;
    /// The maximum length of a label in bytes.
    pub const MAX_LABEL: usize = 64;
    /// The length of the random part.
    const RANDOM_DIGITS: usize = 32;

    /// 128 random bits from the operating system, in hexadecimal.
    ///
    /// # Panics
    /// If the operating system provides no randomness: without it no claim would be safe.
    pub fn random() -> Self {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes).expect("the operating system provides randomness");
        Self(hex(&bytes).into())
    }

    /// A random token that ends in a label of its owner, which operators see beside the claim. The label is
    /// no secret; the 128 random bits before it are.
    ///
    /// A label has 1 to [`Token::MAX_LABEL`] bytes of printable ASCII; any other is left out.
    ///
    /// ```
    /// use hapax_core::Token;
    /// let token = Token::labelled("worker-7");
    /// assert_eq!(token.label(), Some("worker-7"));
    /// assert_eq!(Token::random().label(), None);
    /// assert_eq!(Token::labelled("").label(), None);
    /// ```
    pub fn labelled(label: &str) -> Self {
        let token = Self::random();
        match Self::is_label(label) {
            true => Self(format!("{}.{label}", token.0).into()),
            false => token,
        }
    }

    /// The label of a token that [`Token::labelled`] made.
    pub fn label(&self) -> Option<&str> {
        let (random, label) = self.0.split_at_checked(Self::RANDOM_DIGITS)?;
        let label = label.strip_prefix('.').filter(|label| Self::is_label(label))?;
        random.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(label)
    }

    /// Whether a text can be the label of a token.
    pub fn is_label(text: &str) -> bool {
        (1..=Self::MAX_LABEL).contains(&text.len())
            && text.bytes().all(|byte| (0x20..=0x7e).contains(&byte))
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
