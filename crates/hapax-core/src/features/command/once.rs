use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CommandConfig, CommandError, Commands, StoredResponse};
use crate::{
    ClaimRequest, Claimed, Fingerprint, Key, Once, OnceError, Operation, RunContext, StoreError,
    Tenant, Ticket, canonical_json,
};

impl<E> From<CommandError> for OnceError<E> {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Lost => Self::Lost,
            CommandError::Invalid(error) => Self::Invalid(error),
            CommandError::Store(error) => Self::Store(error),
            error @ (CommandError::Unstorable | CommandError::Malformed(_)) => {
                Self::Store(StoreError::Corrupt { reason: error.to_string() })
            }
        }
    }
}

impl Commands {
    /// Runs `effect` once for this key; later calls with the same key and input get the same value.
    ///
    /// The lease is renewed while the effect runs. An effect that returns an error gives the key
    /// back, and may be retried. A caller that disappears in the middle (the future is dropped, the
    /// process dies) leaves the outcome unknown: see
    /// [`CommandConfig::on_unknown`](super::CommandConfig::on_unknown).
    pub async fn once<I, T, E, F>(
        &self,
        operation: Operation<'_>,
        key: &str,
        input: &I,
        effect: impl FnOnce() -> F,
    ) -> Result<Once<T>, OnceError<E>>
    where
        I: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, E>>,
    {
        self.once_with(operation, key, input, |_| effect()).await
    }

    /// As [`Commands::once`], for effects that pass on their fence and attempt.
    pub async fn once_with<I, T, E, F>(
        &self,
        operation: Operation<'_>,
        key: &str,
        input: &I,
        effect: impl FnOnce(RunContext) -> F,
    ) -> Result<Once<T>, OnceError<E>>
    where
        I: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, E>>,
    {
        let config = self.config.clone();
        let wait = config.wait;
        let label = self.claims.label.as_deref();
        let once = OnceClaim::with_config(&self.tenant, operation, key, input, config, label)?;
        let OnceClaim { key, request } = &once;
        match once.start(self.claims.claim(key, request, wait).await?)? {
            OnceStart::Replay(value) => Ok(Once::replayed(value)),
            OnceStart::Run { ticket, attempt } => {
                let effect = effect(RunContext { fence: ticket.fence, attempt });
                let stored = |value: &T| once.answer(value);
                let value = self.claims.run(key, &ticket, request.lease, effect, stored).await?;
                Ok(Once::first(value))
            }
        }
    }
}

/// The claim behind a `once`, shared by [`Commands::once`] and the transactions of the SQL stores, so
/// that each replays what the other stored.
#[derive(Clone, Debug)]
pub struct OnceClaim {
    /// The command.
    pub key: Key,
    /// The claim to ask for.
    pub request: ClaimRequest,
}

/// The next step after the claim of a `once`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceStart<T> {
    /// Run the effect, then settle the claim with [`OnceClaim::answer`].
    Run {
        /// The proof of ownership.
        ticket: Ticket,
        /// 1 for the first attempt.
        attempt: u32,
    },
    /// The effect ran before and gave this value.
    Replay(T),
}

impl OnceClaim {
    /// The claim for this operation, key and input; without a retention the default one.
    pub fn new<I: Serialize + ?Sized, E>(
        tenant: &Tenant,
        operation: Operation<'_>,
        key: &str,
        input: &I,
        retention: Option<Duration>,
    ) -> Result<Self, OnceError<E>> {
        let defaults = CommandConfig::default();
        let retention = retention.unwrap_or(defaults.retention);
        let config = defaults.retention(retention);
        Self::with_config(tenant, operation, key, input, config, None)
    }

    fn with_config<I: Serialize + ?Sized, E>(
        tenant: &Tenant,
        operation: Operation<'_>,
        key: &str,
        input: &I,
        config: CommandConfig,
        label: Option<&str>,
    ) -> Result<Self, OnceError<E>> {
        let key = Key::command(tenant, operation, key)?;
        let input = canonical_json(&serde_json::to_value(input)?);
        let request = config.fingerprint(Fingerprint::of(&[input.as_bytes()])).request(label);
        Ok(Self { key, request })
    }

    /// Whether to run the effect, by the answer to the claim.
    pub fn start<T: DeserializeOwned, E>(
        &self,
        claimed: Claimed,
    ) -> Result<OnceStart<T>, OnceError<E>> {
        match claimed {
            Claimed::Granted { ticket, attempt } => Ok(OnceStart::Run { ticket, attempt }),
            Claimed::Settled { value, .. } => {
                let response = StoredResponse::decode(value).map_err(CommandError::from)?;
                Ok(OnceStart::Replay(serde_json::from_slice(&response.body)?))
            }
            Claimed::Busy { lease_left } => Err(OnceError::InProgress { retry_after: lease_left }),
            Claimed::Mismatch => Err(OnceError::KeyReused),
            Claimed::Unknown { since } => Err(OnceError::OutcomeUnknown { since }),
        }
    }

    /// The value that settles the claim.
    pub fn answer<T: Serialize, E>(&self, value: &T) -> Result<Bytes, OnceError<E>> {
        Ok(StoredResponse::json(value)?.encode())
    }
}
