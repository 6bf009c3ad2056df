use crate::claims::State;
use crate::{Ask, Claimed, GiveBack, Key, OnUnknown, Step, StoreError, Token};

use super::{CommandError, Commands, Response};

/// What an operator decides about a command whose outcome is unknown, or that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It ran, and this is its answer.
    Settle(Response),
    /// It did not run: forget it, whoever asks next is the first.
    Release,
}

/// What became of a ruling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overruled {
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
    pub async fn overrule(
        &self,
        operation: &str,
        key: &str,
        ruling: &Ruling,
    ) -> Result<Overruled, CommandError> {
        let key = Key::command(&self.tenant, operation, key)?;
        if let Ruling::Settle(response) = ruling
            && !response.is_storable()
        {
            return Err(CommandError::Unstorable);
        }
        let Some(view) = self.store.look(&key).await? else { return Ok(Overruled::Missing) };
        let token = match view.state {
            State::Pending { .. } => return Ok(Overruled::Pending),
            State::Settled { .. } => return Ok(Overruled::Completed),
            State::Unknown { .. } => view.token,
            State::Failed { .. } => {
                // Nobody owns what failed: the operator takes it as anybody would.
                let ask = Ask::new(self.defaults.lease)
                    .retention(self.defaults.retention)
                    .fingerprint(view.fingerprint)
                    .on_unknown(OnUnknown::Refuse);
                match self.store.claim(&key, &ask).await? {
                    Claimed::Granted { ticket, .. } => Some(ticket.token),
                    Claimed::Settled { .. } => return Ok(Overruled::Completed),
                    _ => return Ok(Overruled::Pending),
                }
            }
        };
        let token = token.ok_or(CommandError::Lost)?;
        match self.rule(&key, &token, ruling).await? {
            Step::Done(_) => Ok(Overruled::Done),
            Step::Lost => Ok(Overruled::Pending),
        }
    }

    async fn rule(&self, key: &Key, token: &Token, ruling: &Ruling) -> Result<Step, StoreError> {
        match ruling {
            Ruling::Settle(response) => self.store.settle(key, token, response.encode()).await,
            Ruling::Release => self.store.give_back(key, token, GiveBack::Forget).await,
        }
    }
}
