use std::fmt;
use std::time::Duration;

use super::{Begun, CommandConfig, CommandError, Commands, StoredResponse};
use crate::lease_keeper::KeptLease;
use crate::{Fence, Key, Operation, StoreResult, Ticket};

/// The answer to [`Commands::start`].
#[derive(Debug)]
pub enum Started {
    /// Run the command.
    Running(RunningCommand),
    /// Do not run it; never [`Begun::Granted`].
    Answered(Begun),
}

/// A command that is being run. Its lease is renewed in the background until this value is dropped.
///
/// End it with [`complete`](RunningCommand::complete), [`fail`](RunningCommand::fail) or
/// [`abandon`](RunningCommand::abandon). Where it is dropped without one of them, the outcome is
/// unknown once the lease has run out.
#[must_use = "a dropped command ends with an unknown outcome"]
pub struct RunningCommand {
    commands: Commands,
    key: Key,
    ticket: Ticket,
    attempt: u32,
    lease: KeptLease,
}

impl Commands {
    /// As [`Commands::begin`], for a caller that runs the command in this process.
    pub async fn start(
        &self,
        operation: Operation<'_>,
        key: &str,
        config: &CommandConfig,
    ) -> Result<Started, CommandError> {
        let key = self.key(operation, key)?;
        match self.begin_claim(&key, &self.request(config), config.wait).await? {
            Begun::Granted { ticket, attempt } => {
                Ok(Started::Running(self.run_granted(key, ticket, attempt, config.lease)))
            }
            answered => Ok(Started::Answered(answered)),
        }
    }

    /// Runs a command that was granted: renews its lease of this length from now on.
    pub fn run_granted(
        &self,
        key: Key,
        ticket: Ticket,
        attempt: u32,
        lease: Duration,
    ) -> RunningCommand {
        let (store, token) = (self.claims.store.clone(), ticket.token.clone());
        let lease = self.keeper.keep(store, key.clone(), token, lease);
        RunningCommand { commands: self.clone(), key, ticket, attempt, lease }
    }
}

impl RunningCommand {
    /// Grows with every attempt.
    pub fn fence(&self) -> Fence {
        self.ticket.fence
    }

    /// 1 for the first attempt.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Completes the command. May be repeated with the same response where the store failed; the
    /// lease is renewed meanwhile.
    pub async fn complete(&self, response: &StoredResponse) -> Result<(), CommandError> {
        self.commands.complete_key(&self.key, &self.ticket.token, response).await
    }

    /// Gives the command back as failed: it certainly had no effect, and may be retried.
    pub async fn fail(&self) -> Result<(), CommandError> {
        let Self { commands, key, ticket, .. } = self;
        commands.claims.give_back(key, &ticket.token, CommandError::Lost).await
    }

    /// Makes the outcome unknown at once, without waiting for the lease to run out.
    pub async fn abandon(self) -> StoreResult<()> {
        let Self { commands, key, ticket, lease, .. } = self;
        drop(lease);
        let shortest = Duration::from_millis(1);
        commands.claims.store.extend(&key, &ticket.token, shortest).await.map(|_| ())
    }
}

impl fmt::Debug for RunningCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningCommand").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}
