use std::fmt;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Begun, CommandConfig, CommandError, Commands, StoredResponse};
use crate::{Fence, Key, StoreError, Ticket, claim_retry};

/// The answer to [`Commands::start`].
#[derive(Debug)]
pub enum Started {
    /// Run it.
    Running(RunningCommand),
    /// It is not yours to run; never [`Begun::Granted`].
    Answered(Begun),
}

/// A command that is being run: its lease is renewed in the background until this is dropped.
///
/// End it with [`complete`](RunningCommand::complete), [`fail`](RunningCommand::fail) or
/// [`abandon`](RunningCommand::abandon). Dropped without any of them its outcome is unknown when the lease
/// has run out, as it should be where nobody can say what happened.
#[must_use = "a dropped command ends with an unknown outcome"]
pub struct RunningCommand {
    commands: Commands,
    key: Key,
    ticket: Ticket,
    attempt: u32,
    keeper: JoinHandle<()>,
}

impl Commands {
    /// As [`Commands::begin`], for somebody who runs it in this process.
    pub async fn start(
        &self,
        operation: &str,
        key: &str,
        begin: &CommandConfig,
    ) -> Result<Started, CommandError> {
        let key = Key::command(&self.tenant, operation, key)?;
        match self.begin_key(&key, begin).await? {
            Begun::Granted { ticket, attempt } => {
                Ok(Started::Running(self.run_granted(key, ticket, attempt, begin.lease)))
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
        RunningCommand::new(self.clone(), key, ticket, attempt, lease)
    }
}

impl RunningCommand {
    fn new(commands: Commands, key: Key, ticket: Ticket, attempt: u32, lease: Duration) -> Self {
        let keeper = tokio::spawn({
            let (store, key, token) = (commands.store.clone(), key.clone(), ticket.token.clone());
            async move {
                let since = Instant::now();
                claim_retry::renew_until_lost(store.as_ref(), &key, &token, lease, since, None)
                    .await;
            }
        });
        Self { commands, key, ticket, attempt, keeper }
    }

    /// Grows with every attempt.
    pub fn fence(&self) -> Fence {
        self.ticket.fence
    }

    /// 1 for the first.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Completes it. May be tried again with the same answer where the store failed; until then the
    /// lease goes on being renewed.
    pub async fn complete(&self, response: &StoredResponse) -> Result<(), CommandError> {
        self.commands.complete_key(&self.key, &self.ticket.token, response).await
    }

    /// Gives it back as failed: it is known not to have had its effect, and may be retried.
    pub async fn fail(&self) -> Result<(), CommandError> {
        self.commands.fail_key(&self.key, &self.ticket.token).await
    }

    /// Says that nobody knows whether it had its effect: from now on it is unknown, without waiting
    /// for the lease to run out.
    pub async fn abandon(self) -> Result<(), StoreError> {
        self.keeper.abort();
        let shortest = Duration::from_millis(1);
        self.commands.store.extend(&self.key, &self.ticket.token, shortest).await.map(|_| ())
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl fmt::Debug for RunningCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningCommand").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}
