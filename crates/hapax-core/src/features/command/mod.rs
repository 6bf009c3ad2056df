//! Idempotent commands: the effect happens once, and every caller gets the same answer.
//!
//! [`Commands::once`] does everything around a closure:
//!
//! ```
//! use std::sync::Arc;
//! use hapax_core::{command::Commands, memory::MemoryStore, Operation};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let commands = Commands::new(Arc::new(MemoryStore::default()));
//! let order = serde_json::json!({"item": "tea", "cups": 2});
//! let operation = Operation("CreateOrder");
//!
//! let create = || async { Ok::<_, std::io::Error>("order 17".to_owned()) };
//! let first = commands.once(operation, "key-1", &order, create).await?;
//! let again = commands.once(operation, "key-1", &order, || async {
//!     panic!("never runs a second time");
//!     #[allow(unreachable_code)]
//!     Ok::<_, std::io::Error>(String::new())
//! }).await?;
//! assert_eq!((first.value.as_str(), first.replayed), ("order 17", false));
//! assert_eq!((again.value.as_str(), again.replayed), ("order 17", true));
//! # Ok(()) }
//! ```

mod once;
mod operator;
mod response;
mod running;

use std::sync::Arc;
use std::time::Duration;

pub use once::{OnceClaim, OnceStart};
pub use operator::{OperatorDecision, OperatorOutcome};
pub use response::{MalformedResponse, StoredResponse};
pub use running::{RunningCommand, Started};

use super::effect_claims::{ClaimMetrics, EffectClaims};
use crate::claims::ClaimState;
use crate::lease_keeper::LeaseKeeper;
use crate::{
    ClaimRequest, Claimed, Claims, Fence, Fingerprint, InvalidKey, Key, OnUnknown, Operation,
    StoreError, Tenant, Ticket, Token, metric_names,
};

/// Why a command was not begun, completed or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The token does not own the command (any more): the command was taken over, completed with
    /// another response, failed or forgotten.
    #[error("the command is not yours (any more)")]
    Lost,
    /// The operation or the key is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The response has more than 65,535 headers, or a longer header name.
    #[error("an answer takes at most 65,535 headers, with names of at most 65,535 bytes")]
    Unstorable,
    /// The stored value is not a response.
    #[error(transparent)]
    Malformed(#[from] MalformedResponse),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl CommandError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_retryable())
    }
}

/// How a command is begun: by default 30 seconds of lease, a day of retention, no waiting, unknown
/// outcomes refused, no fingerprint.
#[derive(Clone, Debug)]
pub struct CommandConfig {
    fingerprint: Option<Fingerprint>,
    lease: Duration,
    retention: Duration,
    wait: Duration,
    on_unknown: OnUnknown,
}

impl Default for CommandConfig {
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

impl CommandConfig {
    /// A hash of the request; a begin with another one is [`Begun::KeyReused`].
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: impl Into<Option<Fingerprint>>) -> Self {
        self.fingerprint = fingerprint.into();
        self
    }

    crate::builder_methods! {
        /// How long the owner keeps the command without renewing.
        lease: Duration;
        /// How long the response is kept.
        retention: Duration;
        /// How long to wait for the response of another owner.
        wait: Duration;
        /// The policy for a command whose earlier owner may or may not have acted.
        on_unknown: OnUnknown;
    }

    fn request(&self, label: Option<&str>) -> ClaimRequest {
        ClaimRequest::labelled(self.lease, label)
            .retention(self.retention)
            .fingerprint(self.fingerprint.clone())
            .on_unknown(self.on_unknown)
    }
}

/// The answer to [`Commands::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Run the command, then [`complete`](Commands::complete) or [`fail`](Commands::fail) it.
    Granted {
        /// The proof of ownership.
        ticket: Ticket,
        /// 1 for the first attempt.
        attempt: u32,
    },
    /// The command ran before.
    Completed {
        /// The response of the command.
        response: StoredResponse,
        /// How long the response is still kept.
        expires_in: Duration,
    },
    /// Another owner is running the command.
    InProgress {
        /// When the owner's lease runs out, unless it is renewed.
        retry_after: Duration,
    },
    /// The key belongs to another request.
    KeyReused,
    /// The owner's lease ran out; it may or may not have acted.
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

/// The result of [`Commands::look`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandView {
    /// The state of the command.
    pub state: CommandState,
    /// The number of the last attempt.
    pub attempt: u32,
    /// The fence of the last attempt.
    pub fence: Option<Fence>,
    /// How long ago the last attempt began.
    pub begun_ago: Option<Duration>,
}

/// The state of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandState {
    /// The owner's lease has not run out.
    Pending {
        /// How long the lease still lasts.
        lease_left: Duration,
    },
    /// The owner's lease ran out.
    Unknown {
        /// How long ago.
        since: Duration,
        /// How long this is still remembered.
        expires_in: Duration,
    },
    /// The command ran.
    Completed {
        /// The response of the command.
        response: StoredResponse,
        /// How long the response is still kept.
        expires_in: Duration,
    },
    /// The command failed and may be retried.
    Failed {
        /// How long fingerprint and attempts are still remembered.
        expires_in: Duration,
    },
}

const METRICS: ClaimMetrics = ClaimMetrics {
    begin: metric_names::COMMAND_BEGIN,
    begun: |claimed| match claimed {
        Claimed::Granted { .. } => "granted",
        Claimed::Settled { .. } => "completed",
        Claimed::Busy { .. } => "in_progress",
        Claimed::Mismatch => "key_reused",
        Claimed::Unknown { .. } => "outcome_unknown",
    },
    end: metric_names::COMMAND_END,
    settled: "completed",
    given_back: "failed",
};

/// The commands of one tenant.
#[derive(Clone)]
pub struct Commands {
    claims: EffectClaims,
    tenant: Tenant,
    config: CommandConfig,
    /// Shared by all clones.
    keeper: Arc<LeaseKeeper>,
}

impl Commands {
    /// The commands of the default tenant on this store.
    pub fn new(store: Arc<dyn Claims>) -> Self {
        let claims = EffectClaims::new(store, &METRICS);
        let (tenant, config, keeper) = Default::default();
        Self { claims, tenant, config, keeper }
    }

    crate::builder_methods! {
        /// The commands of another tenant.
        tenant: Tenant;
        /// The configuration of [`Commands::once`], which sets the fingerprint itself.
        config: CommandConfig;
    }

    /// Labels the owner of commands that are begun, for operators ([`Token::labelled`]).
    #[must_use]
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.claims.label = Some(label.as_ref().into());
        self
    }

    /// Leaves the recording of claims as [activity](crate::activity) to the caller: an edge that asks twice for one request
    /// records it once.
    #[must_use]
    pub fn without_activity(mut self) -> Self {
        self.claims.records = false;
        self
    }

    fn request(&self, config: &CommandConfig) -> ClaimRequest {
        config.request(self.claims.label.as_deref())
    }

    fn key(&self, operation: Operation<'_>, key: &str) -> Result<Key, InvalidKey> {
        Key::command(&self.tenant, operation, key)
    }

    /// Asks to run a command.
    pub async fn begin(
        &self,
        operation: Operation<'_>,
        key: &str,
        config: &CommandConfig,
    ) -> Result<Begun, CommandError> {
        self.begin_claim(&self.key(operation, key)?, &self.request(config), config.wait).await
    }

    /// Asks to run a command by its complete key and claim, and waits up to `wait` for another
    /// owner's response.
    pub async fn begin_claim(
        &self,
        key: &Key,
        request: &ClaimRequest,
        wait: Duration,
    ) -> Result<Begun, CommandError> {
        self.claims.claim(key, request, wait).await?.try_into()
    }

    /// Completes a command with its response.
    pub async fn complete(
        &self,
        operation: Operation<'_>,
        key: &str,
        token: &Token,
        response: &StoredResponse,
    ) -> Result<(), CommandError> {
        self.complete_key(&self.key(operation, key)?, token, response).await
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
        self.claims.settle(key, token, response.encode(), CommandError::Lost).await
    }

    /// Makes a begun command last `lease` from now, and returns its fence. Renew a command whose work
    /// may take longer than its lease; [`Commands::once`] does so by itself.
    pub async fn renew(
        &self,
        operation: Operation<'_>,
        key: &str,
        token: &Token,
        lease: Duration,
    ) -> Result<Fence, CommandError> {
        self.claims.renew(&self.key(operation, key)?, token, lease, CommandError::Lost).await
    }

    /// Gives a command back as failed, so that it may be retried.
    pub async fn fail(
        &self,
        operation: Operation<'_>,
        key: &str,
        token: &Token,
    ) -> Result<(), CommandError> {
        self.claims.give_back(&self.key(operation, key)?, token, CommandError::Lost).await
    }

    /// Shows a command; `None` where nothing is known about it.
    pub async fn look(
        &self,
        operation: Operation<'_>,
        key: &str,
    ) -> Result<Option<CommandView>, CommandError> {
        self.look_at(&self.key(operation, key)?).await
    }

    /// Shows a command by its complete key; `None` where nothing is known about it.
    pub async fn look_at(&self, key: &Key) -> Result<Option<CommandView>, CommandError> {
        let Some(view) = self.claims.store.look(key).await? else { return Ok(None) };
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
