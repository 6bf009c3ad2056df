//! What a message asks for.

mod openai;
mod rules;

use async_trait::async_trait;

pub use openai::{OpenAi, OpenAiSettings};
pub use rules::RuleReader;

use crate::entry::{BookkeepingEntry, Changes, InvalidEntry};
use crate::moment::Moment;

/// What is read in a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Intent {
    /// `multi_bookkeeping`: book these, at least one; they obey every rule.
    Book(Vec<BookkeepingEntry>),
    /// `update_last_entry`: change the last entry.
    Edit(Changes),
    /// Delete the last entry.
    Delete,
    /// Show the last entry.
    Show,
    /// Something else.
    Other,
}

/// So many entries are booked by one message.
pub const MAX_ENTRIES: usize = 20;

/// Reads messages.
#[async_trait]
pub trait Reader: Send + Sync + 'static {
    /// What is asked for by somebody who wrote this at that moment.
    async fn read(&self, text: &str, at: Moment) -> Result<Intent, ReadError>;
}

/// Why a message was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It was understood, and breaks a rule. For the user alone.
    #[error(transparent)]
    Invalid(#[from] InvalidEntry),
    /// The reader gives no answer that could be used; what it is, without anything personal.
    #[error("the reader gives no answer: {0}")]
    Unavailable(&'static str),
}

/// Asks one reader, and the rules where that gives no answer.
pub struct Otherwise<R>(pub R, pub RuleReader);

#[async_trait]
impl<R: Reader> Reader for Otherwise<R> {
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
            // The rules know too little to say that it was nonsense.
            Ok(Intent::Other) => Err(ReadError::Unavailable(unavailable)),
            answer => answer,
        }
    }
}
