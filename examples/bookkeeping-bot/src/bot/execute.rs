//! Executes a settled decision; every step is safe to repeat.

use hapax::document::DocumentError;

use super::{BookkeepingBot, texts};
use crate::die_at;
use crate::last::{Draft, Outcome};
use crate::ledger::{Decision, LedgerError, Settled};

/// Maximum attempts to store a booking's record while others change it concurrently.
const TRIES: usize = 16;

impl BookkeepingBot {
    pub(super) async fn execute(&self, settled: &Settled) -> Result<Vec<String>, LedgerError> {
        let (answer, done) = match &settled.decision {
            Decision::Book { entries } => {
                let mut answer = vec![texts::booked(entries)];
                if let Err(error) = self.record(settled).await? {
                    // The entry is booked. The message stays unconcluded, so that the next edit
                    // stores its record.
                    tracing::warn!(reason = reason(&error), "an entry cannot be edited for now");
                    answer.push(texts::NOT_EDITABLE.into());
                    return Ok(answer);
                }
                (answer, true)
            }
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
    pub(super) async fn record(
        &self,
        settled: &Settled,
    ) -> Result<Result<(), DocumentError>, LedgerError> {
        let Decision::Book { entries } = &settled.decision else { return Ok(Ok(())) };
        let Some(entry) = entries.last() else { return Ok(Ok(())) };
        for _ in 0..TRIES {
            let seen = match self.last.look(&settled.user).await {
                Ok(seen) => seen,
                Err(error) => return Ok(Err(error)),
            };
            if !self.ledger.is_last(settled).await? {
                return Ok(Ok(()));
            }
            match self.last.replace(&settled.user, seen, entry).await {
                Ok(true) => return Ok(Ok(())),
                Ok(false) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Err(DocumentError::Contended))
    }

    async fn store(&self, settled: &Settled, draft: &Draft) -> Outcome {
        let outcome = self.last.store(&settled.user, draft).await;
        if outcome != Outcome::Changed || settled.fresh {
            return outcome;
        }
        // An earlier attempt may have stored the edit and crashed before it was concluded.
        match self.last.get(&settled.user).await {
            Ok(Some(kept)) if kept.entry == draft.after => Outcome::Done,
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

/// A label for the log; a driver's message may be personal.
fn reason(error: &DocumentError) -> &'static str {
    match error {
        DocumentError::Store(error) => error.label(),
        DocumentError::Contended => "contended",
        DocumentError::Corrupt(_) => "corrupt",
        _ => "refused",
    }
}
