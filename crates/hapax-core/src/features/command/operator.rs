use crate::claims::ClaimState;
use crate::{Claimed, GiveBack, OnUnknown, Operation, Step};

use super::{CommandError, Commands, StoredResponse};

/// An operator's decision about a command whose outcome is unknown, or that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorDecision {
    /// The command ran, and this is its response.
    Settle(StoredResponse),
    /// The command did not run: forget it, so that the next begin is the first attempt.
    Release,
}

/// The result of [`Commands::decide_as_operator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorOutcome {
    /// The decision was applied.
    Done,
    /// There is no such command.
    Missing,
    /// The lease of the owner has not run out: the operator may not decide.
    Pending,
    /// The command has its response already.
    Completed,
}

impl Commands {
    /// Settles or releases, in place of its owner, a command whose outcome is unknown or that failed.
    /// Uses the ordinary steps of a claim: an owner that returns at the same moment either wins or is
    /// told that it lost.
    pub async fn decide_as_operator(
        &self,
        operation: Operation<'_>,
        key: &str,
        decision: &OperatorDecision,
    ) -> Result<OperatorOutcome, CommandError> {
        let (key, store) = (self.key(operation, key)?, &self.claims.store);
        if let OperatorDecision::Settle(response) = decision
            && !response.is_storable()
        {
            return Err(CommandError::Unstorable);
        }
        let Some(view) = store.look(&key).await? else { return Ok(OperatorOutcome::Missing) };
        let token = match view.state {
            ClaimState::Pending { .. } => return Ok(OperatorOutcome::Pending),
            ClaimState::Settled { .. } => return Ok(OperatorOutcome::Completed),
            ClaimState::Unknown { .. } => view.token,
            ClaimState::Failed { .. } => {
                // A failed command has no owner: the operator claims it like any other caller.
                let config = self.config.clone().fingerprint(view.fingerprint);
                let request = config.on_unknown(OnUnknown::Refuse).request();
                match store.claim(&key, &request).await? {
                    Claimed::Granted { ticket, .. } => Some(ticket.token),
                    Claimed::Settled { .. } => return Ok(OperatorOutcome::Completed),
                    _ => return Ok(OperatorOutcome::Pending),
                }
            }
        };
        let token = token.ok_or(CommandError::Lost)?;
        let step = match decision {
            OperatorDecision::Settle(response) => store.settle(&key, &token, response.encode()),
            OperatorDecision::Release => store.give_back(&key, &token, GiveBack::Forget),
        };
        match step.await? {
            Step::Done(_) => Ok(OperatorOutcome::Done),
            Step::Lost => Ok(OperatorOutcome::Pending),
        }
    }
}
