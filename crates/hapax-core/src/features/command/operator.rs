use std::sync::Arc;
use std::time::Duration;

use crate::claim_retry::{UndoOnDrop, claim, retry_once_on_disconnect};
use crate::claims::ClaimState;
use crate::{
    ClaimStep, Claimed, Claims, GiveBack, Key, OnUnknown, Operation, Step, StoreResult, Token,
};

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
                let request = self.request(&config.on_unknown(OnUnknown::Refuse));
                let claiming = claim(store, &key, &request, Duration::ZERO, GiveBack::Keep);
                match claiming.await?.claimed {
                    Claimed::Granted { ticket, .. } => {
                        let token = ticket.token;
                        // Without an answer to the second step the command fails again, with one more
                        // attempt; otherwise it would become unknown. If that step was applied, undoing
                        // changes nothing.
                        let undo = &ClaimStep::GiveBack(GiveBack::Keep);
                        let unanswered = UndoOnDrop { store, key: &key, token: &token, undo };
                        let step = apply(store, &key, &token, decision).await?;
                        unanswered.heard();
                        return Ok(outcome(step));
                    }
                    Claimed::Settled { .. } => return Ok(OperatorOutcome::Completed),
                    _ => return Ok(OperatorOutcome::Pending),
                }
            }
        };
        let token = token.ok_or(CommandError::Lost)?;
        apply(store, &key, &token, decision).await.map(outcome).map_err(Into::into)
    }
}

async fn apply(
    store: &Arc<dyn Claims>,
    key: &Key,
    token: &Token,
    decision: &OperatorDecision,
) -> StoreResult<Step> {
    match decision {
        OperatorDecision::Settle(response) => {
            let value = response.encode();
            retry_once_on_disconnect(|| store.settle(key, token, value.clone())).await
        }
        // Not repeated, because a second release would find nothing and be reported as lost.
        OperatorDecision::Release => store.give_back(key, token, GiveBack::Forget).await,
    }
}

fn outcome(step: Step) -> OperatorOutcome {
    match step {
        Step::Done(_) => OperatorOutcome::Done,
        Step::Lost => OperatorOutcome::Pending,
    }
}
