//! Decides how to handle a new message, without changing anything yet.

use hapax::Timestamp;

use super::{BookkeepingBot, texts};
use crate::last::{Kept, Outcome};
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
            Intent::Delete => match self.kept(user).await {
                Ok(Kept { entry, version, .. }) => {
                    Decision::Delete { version: version.as_str().into(), entry }
                }
                Err(outcome) => say(outcome.text()),
            },
            Intent::Show => match self.kept(user).await {
                Ok(kept) => say(texts::shown(&kept)),
                Err(outcome) => say(outcome.text()),
            },
            Intent::Other => say(texts::help()),
        })
    }

    async fn kept(&self, user: &str) -> Result<Kept, Outcome> {
        let kept = self.last.get(user).await.map_err(|error| Outcome::of_reading(&error))?;
        kept.ok_or(Outcome::Missing)
    }

    /// Stores the record of the latest booking if that failed before, because the store was down or
    /// an attempt crashed. Otherwise an edit would change an older entry than the user means.
    async fn catch_up(&self, user: &str) -> Result<Result<(), Outcome>, LedgerError> {
        let ttl = u64::try_from(self.last.ttl().as_millis()).unwrap_or(u64::MAX);
        let since = Timestamp(self.time.now().0.saturating_sub(ttl));
        let Some(booking) = self.ledger.unrecorded(user, since).await? else { return Ok(Ok(())) };
        if let Err(error) = self.record(&booking).await? {
            return Ok(Err(Outcome::of_reading(&error)));
        }
        let Decision::Book { entries } = &booking.decision else { return Ok(Ok(())) };
        self.ledger.conclude(&booking, &[texts::booked(entries)], true).await.map(Ok)
    }
}

fn say(text: String) -> Decision {
    Decision::Say { text }
}
