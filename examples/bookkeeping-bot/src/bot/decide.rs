//! Decides how to handle a new message, without changing anything yet.

use hapax::Timestamp;

use super::execute::RecordError;
use super::{BookkeepingBot, texts};
use crate::last::Outcome;
use crate::ledger::{Decision, LedgerError};
use crate::moment::Moment;
use crate::reader::{Intent, ReadError};

impl BookkeepingBot {
    pub(super) async fn decide(
        &self,
        user: &str,
        text: &str,
        at: Moment,
    ) -> Result<Decision, LedgerError> {
        let intent = match self.reader.read(text, at).await {
            Ok(intent) => intent,
            Err(ReadError::Invalid(error)) => return Ok(say(texts::refused(&error))),
            Err(_) => return Ok(say(texts::no_reader())),
        };
        if let Intent::Edit(_) | Intent::Delete | Intent::Show = intent
            && let Err(outcome) = self.catch_up(user).await?
        {
            return Ok(say(outcome.text()));
        }
        Ok(match intent {
            Intent::Book(entries) => Decision::Book { entries },
            Intent::Edit(changes) => match self.last.draft(user, &changes).await {
                Ok(draft) => Decision::Edit { draft },
                Err(outcome) => say(outcome.text()),
            },
            Intent::Delete => match self.last.existing(user).await {
                Ok(found) => {
                    Decision::Delete { version: found.version.as_str().into(), entry: found.value }
                }
                Err(outcome) => say(outcome.text()),
            },
            Intent::Show => match self.last.existing(user).await {
                Ok(found) => say(texts::shown(&found)),
                Err(outcome) => say(outcome.text()),
            },
            Intent::Other => say(texts::HELP.into()),
        })
    }

    /// Stores the record of the latest booking if that failed before, because the store was down or
    /// an attempt crashed. Otherwise an edit would change an older entry than the user means.
    async fn catch_up(&self, user: &str) -> Result<Result<(), Outcome>, LedgerError> {
        let ttl = u64::try_from(self.last.ttl().as_millis()).unwrap_or(u64::MAX);
        let since = Timestamp(self.time.now().0.saturating_sub(ttl));
        let Some(booking) = self.ledger.unrecorded(user, since).await? else { return Ok(Ok(())) };
        match self.record(&booking).await {
            Ok(()) => {}
            Err(RecordError::Ledger(error)) => return Err(error),
            Err(RecordError::Document(error)) => return Ok(Err(Outcome::of_reading(&error))),
        }
        let answer = [texts::booked(booking.decision.entries())];
        self.ledger.conclude(&booking, &answer, true).await.map(Ok)
    }
}

fn say(text: String) -> Decision {
    Decision::Say { text }
}
