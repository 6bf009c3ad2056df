//! The bot: a [`LineEventHandler`] on a reader, a ledger and the last entries.

mod decide;
mod execute;
mod texts;

use std::sync::Arc;

use async_trait::async_trait;
use example_common::truncate_utf16;
use hapax_line::{
    EventContext, EventHandlerError, EventKind, LineEvent, LineEventHandler, LineMessage, MAX_TEXT,
    SendError,
};

use crate::die_at;
use crate::last::LastTransaction;
use crate::ledger::{self, Ledger, LedgerError};
use crate::moment::LocalTime;
use crate::reader::Reader;

/// A bot that keeps books.
///
/// Each message is decided once ([`Ledger::settle`]), executed, concluded and answered. Every
/// step is safe to repeat, so an attempt that crashed anywhere is simply made again.
pub struct BookkeepingBot {
    reader: Arc<dyn Reader>,
    ledger: Ledger,
    last: LastTransaction,
    time: LocalTime,
}

impl BookkeepingBot {
    /// Creates a bot.
    pub fn new(
        reader: Arc<dyn Reader>,
        ledger: Ledger,
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
            None => self.execute(&settled).await,
        }
    }

    async fn message(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        let Some(text) = event.addressed_text(texts::BOT) else { return Ok(()) };
        let Some(user) = event.user_id() else {
            return say(context, &[texts::NOBODY.into()]).await;
        };
        let sent_at = event.json()["timestamp"].as_u64();
        let id = context.id().to_string();
        let answer = self.answer(&id, user, &text, sent_at).await;
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
            EventKind::FOLLOW => say(context, &[texts::HELP.into()]).await,
            _ => Ok(()),
        }
    }
}

/// Sends the answer. Only `SendError::NotNow` is retried: after other errors the answer may have
/// arrived, or can never be sent.
async fn say(context: &EventContext, texts: &[String]) -> Result<(), EventHandlerError> {
    let messages: Vec<_> =
        texts.iter().map(|text| LineMessage::text(truncate_utf16(text, MAX_TEXT))).collect();
    match context.reply_or_push(&messages).await {
        Err(SendError::NotNow) => Err(EventHandlerError::retry("LINE takes nothing now")),
        Err(error) => {
            tracing::warn!(correlation = context.correlation(), "no answer was sent: {error}");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}
