//! Executes a settled decision; every step is safe to repeat.

use hapax::document::DocumentError;

use super::{BookkeepingBot, texts};
use crate::die_at;
use crate::last::{Draft, Outcome, label};
use crate::ledger::{Decision, LedgerError, Settled};

/// Maximum attempts to store a booking's record while others change it concurrently.
const MAX_ATTEMPTS: usize = 16;

/// Why a booking's record could not be stored.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl BookkeepingBot {
    pub(super) async fn execute(&self, settled: &Settled) -> Result<Vec<String>, LedgerError> {
        let (answer, done) = match &settled.decision {
            Decision::Book { entries } => match self.record(settled).await {
                Ok(()) => (vec![texts::booked(entries)], true),
                Err(RecordError::Ledger(error)) => return Err(error),
                Err(RecordError::Document(error)) => {
                    // The entry is booked. The message stays unconcluded, so that the next edit
                    // stores its record.
                    tracing::warn!(reason = label(&error), "an entry cannot be edited for now");
                    return Ok(vec![texts::booked(entries), texts::NOT_EDITABLE.into()]);
                }
            },
            Decision::Edit { draft } => match self.store(settled, draft).await {
                Outcome::Done => (vec![Outcome::Done.text(), texts::details(&draft.after)], true),
                outcome => (vec![outcome.text()], false),
            },
            Decision::Delete { version, entry } => match self.withdraw(settled, version).await {
                Outcome::Done => (vec![texts::deleted(entry)], true),
                outcome => (vec![outcome.text()], false),
            },
            Decision::Say { text } => (vec![text.clone()], true),
        };
        die_at("done");
        self.ledger.conclude(settled, &answer, done).await?;
        Ok(answer)
    }

    /// Makes the last entry of a booking the record, unless a later message has replaced it.
    /// `is_last` is checked between `look` and `replace`: a message that is settled after the check
    /// either finds the old record or changes it, and then `replace` fails.
    pub(super) async fn record(&self, settled: &Settled) -> Result<(), RecordError> {
        let Some(entry) = settled.decision.entries().last() else { return Ok(()) };
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.last.look(&settled.user).await?;
            if !self.ledger.is_last(settled).await?
                || self.last.replace(&settled.user, seen, entry).await?
            {
                return Ok(());
            }
        }
        Err(DocumentError::Contended.into())
    }

    async fn store(&self, settled: &Settled, draft: &Draft) -> Outcome {
        let outcome = self.last.store(&settled.user, draft).await;
        if outcome != Outcome::Changed || settled.fresh {
            return outcome;
        }
        // An earlier attempt may have stored the edit and crashed before it was concluded.
        match self.last.get(&settled.user).await {
            Ok(Some(last)) if last.value == draft.after => Outcome::Done,
            _ => outcome,
        }
    }

    async fn withdraw(&self, settled: &Settled, version: &str) -> Outcome {
        match self.last.withdraw(&settled.user, version).await {
            // An earlier attempt may have deleted the record and crashed before it was concluded.
            Outcome::Expired if !settled.fresh => Outcome::Done,
            outcome => outcome,
        }
    }
}
