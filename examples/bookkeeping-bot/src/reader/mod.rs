//! Readers, which determine what a message asks for.

mod openai;
mod rules;

use async_trait::async_trait;

pub use openai::{OpenAi, OpenAiSettings};
pub use rules::RuleReader;

use crate::entry::{BookkeepingEntry, Changes, InvalidEntry};
use crate::moment::Moment;

/// The request in a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// `multi_bookkeeping`: book these entries, at least one, each of them valid.
    Book(Vec<BookkeepingEntry>),
    /// `update_last_entry`: change the last entry.
    Edit(Changes),
    /// Delete the last entry.
    Delete,
    /// Show the last entry.
    Show,
    /// Anything else.
    Other,
}

/// Maximum number of entries in one message.
pub const MAX_ENTRIES: usize = 20;

/// Determines what a message asks for.
#[async_trait]
pub trait Reader: Send + Sync + 'static {
    /// Reads a message that the user sent at this moment.
    async fn read(&self, text: &str, at: Moment) -> Result<Intent, ReadError>;
}

/// Why a message could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The message was understood, and breaks a rule. For the user only, not for logs.
    #[error(transparent)]
    Invalid(#[from] InvalidEntry),
    /// The reader gave no usable answer; the reason contains nothing personal.
    #[error("the reader gives no answer: {0}")]
    Unavailable(&'static str),
}

/// Asks the first reader, and falls back to the rules if it is unavailable.
pub struct FallbackReader<R>(pub R, pub RuleReader);

#[async_trait]
impl<R: Reader> Reader for FallbackReader<R> {
    async fn read(&self, text: &str, at: Moment) -> Result<Intent, ReadError> {
        let unavailable = match self.0.read(text, at).await {
            Err(ReadError::Unavailable(reason)) => reason,
            answer => return answer,
        };
        tracing::warn!(
            reason = unavailable,
            "the model was of no help; the rules read the message"
        );
        match self.1.read(text, at).await {
            // The rules understand too little to reject the message, so report the model's failure.
            Ok(Intent::Other) => Err(ReadError::Unavailable(unavailable)),
            answer => answer,
        }
    }
}
