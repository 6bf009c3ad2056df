//! Idempotent commands: the effect happens once, and everybody gets the same answer.
//!
//! [`Commands::once`] does it all around a closure:
//!
//! ```
//! use std::sync::Arc;
//! use hapax_core::{command::Commands, memory::MemoryStore};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let commands = Commands::new(Arc::new(MemoryStore::default()));
//! let order = serde_json::json!({"item": "tea", "cups": 2});
//!
//! let create = || async { Ok::<_, std::io::Error>("order 17".to_owned()) };
//! let first = commands.once("key-1", "CreateOrder", &order, create).await?;
//! let again = commands.once("key-1", "CreateOrder", &order, || async {
//!     panic!("never runs a second time");
//!     #[allow(unreachable_code)]
//!     Ok::<_, std::io::Error>(String::new())
//! }).await?;
//! assert_eq!((first.value.as_str(), first.replayed), ("order 17", false));
//! assert_eq!((again.value.as_str(), again.replayed), ("order 17", true));
//! # Ok(()) }
//! ```

mod once;
mod once_claim;
mod operator;
mod response;
mod running;

use std::sync::Arc;
use std::time::Duration;

use metrics::counter;

pub use once::{Once, OnceError, RunContext};
pub use once_claim::{OnceClaim, OnceStart, Operation};
pub use operator::{OperatorDecision, OperatorOutcome};
pub use response::{MalformedResponse, StoredResponse};
pub use running::{RunningCommand, Started};

use crate::claims::ClaimState;
use crate::{
    ClaimRequest, Claimed, Claims, Fence, Fingerprint, GiveBack, InvalidKey, Key, OnUnknown, Step,
    StoreError, Tenant, Ticket, Token, claim_retry, metric_names,
};

/// Why a command got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The token is not its owner's (any more): it was taken over, completed with another answer,
    /// failed or forgotten.
    #[error("the command is not yours (any more)")]
    Lost,
    /// The operation or the key cannot be one.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The answer has more than 65,535 headers, or a name that is longer.
    #[error("an answer takes at most 65,535 headers, with names of at most 65,535 bytes")]
    Unstorable,
    /// What is stored is no answer.
    #[error(transparent)]
    Malformed(#[from] MalformedResponse),
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How a command is begun.
#[derive(Clone, Debug)]
pub struct CommandConfig {
    /// A hash of the request.
    pub fingerprint: Option<Fingerprint>,
    /// How long the owner is believed alive without renewal.
    pub lease: Duration,
    /// How long the answer is kept.
    pub retention: Duration,
    /// How long to wait for somebody else's answer.
    pub wait: Duration,
    /// What to do where an earlier owner may or may not have acted.
    pub on_unknown: OnUnknown,
}

impl Default for CommandConfig {
    /// 30 seconds of lease, a day of retention, no waiting, unknown outcomes refused.
    fn default() -> Self {
        Self {
            fingerprint: None,
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(86_400),
            wait: Duration::ZERO,
            on_unknown: OnUnknown::Refuse,
        }
    }
}

/// The answer to [`Commands::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// RunContext it, then [`complete`](Commands::complete) or [`fail`](Commands::fail) it.
    Granted {
        /// The proof.
        ticket: Ticket,
        /// Which attempt it is.
        attempt: u32,
    },
    /// It ran before; this is the answer.
    Completed {
        /// The answer.
        response: StoredResponse,
        /// How long it is kept.
        expires_in: Duration,
    },
    /// It runs now.
    InProgress {
        /// When its owner stops being believed alive, if it does not renew.
        retry_after: Duration,
    },
    /// The key belongs to another request.
    KeyReused,
    /// Its owner went away, and may or may not have acted.
    OutcomeUnknown {
        /// How long ago.
        since: Duration,
    },
}

impl TryFrom<Claimed> for Begun {
    type Error = CommandError;

    fn try_from(claimed: Claimed) -> Result<Self, CommandError> {
        Ok(match claimed {
            Claimed::Granted { ticket, attempt } => Self::Granted { ticket, attempt },
            Claimed::Settled { value, expires_in } => {
                Self::Completed { response: StoredResponse::decode(value)?, expires_in }
            }
            Claimed::Busy { lease_left } => Self::InProgress { retry_after: lease_left },
            Claimed::Mismatch => Self::KeyReused,
            Claimed::Unknown { since } => Self::OutcomeUnknown { since },
        })
    }
}

/// What [`Commands::look`] shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandView {
    /// Where it stands.
    pub state: CommandState,
    /// Which attempt it is or was.
    pub attempt: u32,
    /// The fence of the last attempt.
    pub fence: Option<Fence>,
    /// How long ago the last attempt began.
    pub begun_ago: Option<Duration>,
}

/// Where a command stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// Its owner is believed alive.
    Pending {
        /// For how long.
        lease_left: Duration,
    },
    /// Its owner went away.
    Unknown {
        /// How long ago.
        since: Duration,
        /// How long that is remembered.
        expires_in: Duration,
    },
    /// It ran.
    Completed {
        /// Its answer.
        response: StoredResponse,
        /// How long that is kept.
        expires_in: Duration,
    },
    /// It failed and may be retried.
    Failed {
        /// How long fingerprint and attempts are remembered.
        expires_in: Duration,
    },
}

/// Commands of one tenant.
#[derive(Clone)]
pub struct Commands {
    store: Arc<dyn Claims>,
    tenant: Tenant,
    defaults: CommandConfig,
}

impl Commands {
    /// Commands of the default tenant on this store.
    pub fn new(store: Arc<dyn Claims>) -> Self {
        Self { store, tenant: Tenant::default(), defaults: CommandConfig::default() }
    }

    /// Commands of another tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// How [`Commands::once`] begins; its fingerprint is always that of the input.
    #[must_use]
    pub fn defaults(mut self, defaults: CommandConfig) -> Self {
        self.defaults = defaults;
        self
    }

    /// Asks to run a command.
    pub async fn begin(
        &self,
        operation: &str,
        key: &str,
        begin: &CommandConfig,
    ) -> Result<Begun, CommandError> {
        self.begin_key(&Key::command(&self.tenant, operation, key)?, begin).await
    }

    async fn begin_key(&self, key: &Key, begin: &CommandConfig) -> Result<Begun, CommandError> {
        let claim = ClaimRequest::new(begin.lease)
            .retention(begin.retention)
            .fingerprint(begin.fingerprint.clone())
            .on_unknown(begin.on_unknown);
        self.begin_claim(key, &claim, begin.wait).await
    }

    /// Asks to run a command by its complete key and claim, and waits up to `wait` for another
    /// owner's answer.
    pub async fn begin_claim(
        &self,
        key: &Key,
        claim: &ClaimRequest,
        wait: Duration,
    ) -> Result<Begun, CommandError> {
        let claimed = claim_retry::claim(&self.store, key, claim, wait, GiveBack::Keep).await;
        let begun = claimed.map_err(CommandError::from).and_then(|(claimed, _)| claimed.try_into());
        let result = match &begun {
            Ok(Begun::Granted { .. }) => "granted",
            Ok(Begun::Completed { .. }) | Err(CommandError::Malformed(_)) => "completed",
            Ok(Begun::InProgress { .. }) => "in_progress",
            Ok(Begun::KeyReused) => "key_reused",
            Ok(Begun::OutcomeUnknown { .. }) => "outcome_unknown",
            Err(_) => "error",
        };
        counter!(metric_names::COMMAND_BEGIN, "result" => result).increment(1);
        begun
    }

    /// Completes a command with its answer.
    pub async fn complete(
        &self,
        operation: &str,
        key: &str,
        token: &Token,
        response: &StoredResponse,
    ) -> Result<(), CommandError> {
        self.complete_key(&Key::command(&self.tenant, operation, key)?, token, response).await
    }

    async fn complete_key(
        &self,
        key: &Key,
        token: &Token,
        response: &StoredResponse,
    ) -> Result<(), CommandError> {
        if !response.is_storable() {
            return Err(CommandError::Unstorable);
        }
        let value = response.encode();
        let settle = || self.store.settle(key, token, value.clone());
        ended("completed", claim_retry::retry_once_on_disconnect(settle).await)
    }

    /// Gives a command back as failed: it may be retried.
    pub async fn fail(
        &self,
        operation: &str,
        key: &str,
        token: &Token,
    ) -> Result<(), CommandError> {
        self.fail_key(&Key::command(&self.tenant, operation, key)?, token).await
    }

    async fn fail_key(&self, key: &Key, token: &Token) -> Result<(), CommandError> {
        let give_back = || self.store.give_back(key, token, GiveBack::Keep);
        ended("failed", claim_retry::retry_once_on_disconnect(give_back).await)
    }

    /// What is known about a command; `None` where nothing is.
    pub async fn look(
        &self,
        operation: &str,
        key: &str,
    ) -> Result<Option<CommandView>, CommandError> {
        let key = Key::command(&self.tenant, operation, key)?;
        let Some(view) = self.store.look(&key).await? else { return Ok(None) };
        let state = match view.state {
            ClaimState::Pending { lease_left } => CommandState::Pending { lease_left },
            ClaimState::Unknown { since, expires_in } => {
                CommandState::Unknown { since, expires_in }
            }
            ClaimState::Failed { expires_in } => CommandState::Failed { expires_in },
            ClaimState::Settled { value, expires_in } => {
                CommandState::Completed { response: StoredResponse::decode(value)?, expires_in }
            }
        };
        let (attempt, fence, begun_ago) = (view.attempt, view.fence, view.granted_ago);
        Ok(Some(CommandView { state, attempt, fence, begun_ago }))
    }
}

fn ended(how: &'static str, answer: Result<Step, StoreError>) -> Result<(), CommandError> {
    let (label, result) = match answer {
        Ok(Step::Done(_)) => ("done", Ok(())),
        Ok(Step::Lost) => ("lost", Err(CommandError::Lost)),
        Err(error) => {
            metric_names::count_store_error(&error);
            ("error", Err(error.into()))
        }
    };
    counter!(metric_names::COMMAND_END, "how" => how, "result" => label).increment(1);
    result
}
