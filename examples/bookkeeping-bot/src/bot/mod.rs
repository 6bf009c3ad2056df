//! The bot: a [`LineEventHandler`] on a reader, a ledger and the last entries.

mod carry_out;
mod decide;
mod texts;

use std::sync::Arc;

use async_trait::async_trait;
use hapax_line::{
    EventContext, EventHandlerError, EventKind, LineEvent, LineEventHandler, LineMessage, MAX_TEXT,
    SendError,
};

use crate::crash::die_at;
use crate::last::LastTransaction;
use crate::ledger::{self, Ledger, LedgerError};
use crate::moment::LocalTime;
use crate::reader::Reader;

/// A bot that keeps books.
///
/// Each message is decided once ([`Ledger::settle`]), carried out, concluded and answered. Every
/// step is safe to repeat, so an attempt that crashed anywhere is simply made again.
pub struct BookkeepingBot {
    reader: Arc<dyn Reader>,
    ledger: Arc<dyn Ledger>,
    last: LastTransaction,
    time: LocalTime,
}

impl BookkeepingBot {
    /// Creates a bot.
    pub fn new(
        reader: Arc<dyn Reader>,
        ledger: Arc<dyn Ledger>,
        last: LastTransaction,
        time: LocalTime,
    ) -> Self {
        Self { reader, ledger, last, time }
    }

    /// Handles a message and returns the answer. A repeated message gets the same answer, and
    /// nothing is booked or edited twice.
    ///
    /// # Errors
    /// If the ledger does not answer. The caller must then send nothing and retry the message.
    pub async fn answer(
        &self,
        id: &str,
        user: &str,
        text: &str,
        sent_at: Option<u64>,
    ) -> Result<Vec<String>, LedgerError> {
        let settled = match self.ledger.settled(id).await? {
            Some(settled) => settled,
            None => {
                let decision = self.decide(user, text, self.time.sent(sent_at)).await?;
                die_at("decided");
                let (id, user, now) = (id.to_owned(), user.to_owned(), self.time.now());
                let settled =
                    self.ledger.settle(&ledger::Message { id, user, now }, &decision).await?;
                die_at("settled");
                settled
            }
        };
        match &settled.answer {
            Some(said) => Ok(said.clone()),
            None => self.carry_out(&settled).await,
        }
    }

    async fn message(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        let Some(text) = event.text() else { return Ok(()) };
        let Some(user) = event.user_id() else {
            return say(context, &[texts::NOBODY.into()]).await;
        };
        let sent_at = event.json()["timestamp"].as_u64();
        let id = context.id().to_string();
        let answer = self.answer(&id, user, text, sent_at).await;
        // A retry is safe: the ledger knows which steps are done.
        let answer = answer.map_err(|error| EventHandlerError::retry(error.to_string()))?;
        die_at("concluded");
        say(context, &answer).await?;
        die_at("said");
        Ok(())
    }
}

#[async_trait]
impl LineEventHandler for BookkeepingBot {
    async fn handle(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        // In standby another module of the channel answers.
        if event.is_standby() {
            return Ok(());
        }
        match event.kind() {
            EventKind::TEXT => self.message(event, context).await,
            EventKind::FOLLOW => say(context, &[texts::help()]).await,
            _ => Ok(()),
        }
    }
}

/// Truncates a text to LINE's limit.
fn fitting(text: &str) -> String {
    if text.encode_utf16().count() <= MAX_TEXT {
        return text.to_owned();
    }
    let mut room = MAX_TEXT - 1;
    let fits = |c: &char| {
        let left = room.checked_sub(c.len_utf16());
        room = left.unwrap_or(0);
        left.is_some()
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Sends the answer. Only `SendError::NotNow` is retried: after other errors the answer may have
/// arrived, or can never be sent.
async fn say(context: &EventContext, texts: &[String]) -> Result<(), EventHandlerError> {
    let messages: Vec<_> = texts.iter().map(|text| LineMessage::text(fitting(text))).collect();
    match context.reply_or_push(&messages).await {
        Err(SendError::NotNow) => Err(EventHandlerError::retry("LINE takes nothing now")),
        Err(error) => {
            tracing::warn!(correlation = context.correlation(), "no answer was sent: {error}");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_to_what_line_takes() {
        assert_eq!(fitting("🥚"), "🥚");
        let whole = "🥚".repeat(MAX_TEXT / 2);
        assert_eq!(fitting(&whole), whole);
        let cut = fitting(&"🥚".repeat(MAX_TEXT));
        assert_eq!(cut, "🥚".repeat(MAX_TEXT / 2 - 1) + "…");
    }
}
