use crate::claims::ClaimState;
use crate::{ClaimRequest, Claimed, GiveBack, Key, OnUnknown, Step, StoreError, Token};

use super::{CommandError, Commands, StoredResponse};

/// What an operator decides about a command whose outcome is unknown, or that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorDecision {
    /// It ran, and this is its answer.
    Settle(StoredResponse),
    /// It did not run: forget it, whoever asks next is the first.
    Release,
}

/// What became of a ruling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorOutcome {
    /// It is as the operator said.
    Done,
    /// There is no such command.
    Missing,
    /// Its owner is believed alive: not the operator's to decide.
    Pending,
    /// It has its answer already.
    Completed,
}

impl Commands {
    /// Settles or releases, in its owner's place, a command whose outcome is unknown or that failed.
    /// The ordinary steps do it: an owner who comes back at the same moment wins or is told that it
    /// lost.
    pub async fn decide_as_operator(
        &self,
        operation: &str,
        key: &str,
        ruling: &OperatorDecision,
    ) -> Result<OperatorOutcome, CommandError> {
        let key = Key::command(&self.tenant, operation, key)?;
        if let OperatorDecision::Settle(response) = ruling
            && !response.is_storable()
        {
            return Err(CommandError::Unstorable);
        }
        let Some(view) = self.store.look(&key).await? else { return Ok(OperatorOutcome::Missing) };
        let token = match view.state {
            ClaimState::Pending { .. } => return Ok(OperatorOutcome::Pending),
            ClaimState::Settled { .. } => return Ok(OperatorOutcome::Completed),
            ClaimState::Unknown { .. } => view.token,
            ClaimState::Failed { .. } => {
                // Nobody owns what failed: the operator takes it as anybody would.
                let ask = ClaimRequest::new(self.defaults.lease)
                    .retention(self.defaults.retention)
                    .fingerprint(view.fingerprint)
                    .on_unknown(OnUnknown::Refuse);
                match self.store.claim(&key, &ask).await? {
                    Claimed::Granted { ticket, .. } => Some(ticket.token),
                    Claimed::Settled { .. } => return Ok(OperatorOutcome::Completed),
                    _ => return Ok(OperatorOutcome::Pending),
                }
            }
        };
        let token = token.ok_or(CommandError::Lost)?;
        match self.rule(&key, &token, ruling).await? {
            Step::Done(_) => Ok(OperatorOutcome::Done),
            Step::Lost => Ok(OperatorOutcome::Pending),
        }
    }

    async fn rule(
        &self,
        key: &Key,
        token: &Token,
        ruling: &OperatorDecision,
    ) -> Result<Step, StoreError> {
        match ruling {
            OperatorDecision::Settle(response) => {
                self.store.settle(key, token, response.encode()).await
            }
            OperatorDecision::Release => self.store.give_back(key, token, GiveBack::Forget).await,
        }
    }
}
