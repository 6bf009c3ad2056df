use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::hex::hex;

/// The secret that proves ownership of a claim or of leased items.
///
/// The caller creates the token before the first call, so that a claim whose answer was lost can be
/// repeated: the store recognises the token and returns the same grant.
#[derive(Clone)]
pub struct Token(TokenText);

#[derive(Clone)]
enum TokenText {
    Presented(Arc<str>),
    /// Made when it is first read, for all clones alike: a claim that is answered with a stored value needs no token, and
    /// the operating system's randomness would be a third of the work of such a replay.
    Random(Arc<RandomText>),
}

struct RandomText {
    label: Option<Box<str>>,
    text: OnceLock<Box<str>>,
}

impl Token {
    /// The maximum length in bytes.
    pub const MAX: usize = 255;
    /// The maximum length of a label in bytes.
    pub const MAX_LABEL: usize = 64;
    /// The length of the random part.
    const RANDOM_DIGITS: usize = 32;

    /// 128 random bits from the operating system, in hexadecimal. They are drawn when the token is first read.
    ///
    /// # Panics
    /// Reading it panics if the operating system provides no randomness: without it no claim would be safe.
    pub fn random() -> Self {
        Self::with_label(None)
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
        Self::with_label(Self::is_label(label).then(|| label.into()))
    }

    fn with_label(label: Option<Box<str>>) -> Self {
        Self(TokenText::Random(Arc::new(RandomText { label, text: OnceLock::new() })))
    }

    /// The label of a token that [`Token::labelled`] made.
    pub fn label(&self) -> Option<&str> {
        let (random, label) = self.as_str().split_at_checked(Self::RANDOM_DIGITS)?;
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
        Self(TokenText::Presented(text.into()))
    }

    /// The token as text, as it is sent over the wire.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            TokenText::Presented(text) => text,
            TokenText::Random(random) => random.text.get_or_init(|| random.draw()),
        }
    }
}

impl RandomText {
    fn draw(&self) -> Box<str> {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes).expect("the operating system provides randomness");
        let random = hex(&bytes);
        match &self.label {
            Some(label) => [&random, ".", label].concat().into(),
            None => random.into(),
        }
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Token {}

impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

/// Hides the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim is repeated with a clone of its token: the store must see the same text.
    #[test]
    fn token_is_drawn_once_for_all_its_clones() {
        let token = Token::random();
        let clone = token.clone();
        assert_eq!(clone.as_str(), token.as_str());
        assert_eq!(Token::presented(clone.as_str()), token);
        assert_ne!(Token::random(), token);
    }

    #[test]
    fn token_is_not_drawn_before_it_is_read() {
        let token = Token::labelled("worker-7");
        let TokenText::Random(random) = &token.0 else { panic!("a random token") };
        assert!(random.text.get().is_none());
        assert!(token.as_str().ends_with(".worker-7"));
    }
}
