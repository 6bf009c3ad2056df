use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Begun, CommandError, Commands, StoredResponse};
use crate::{
    Fingerprint, Key, Once, OnceError, Operation, RunContext, StoreError, Ticket, canonical_json,
    claim_retry,
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
        let key = Key::command(&self.tenant, operation, key)?;
        let input = canonical_json(&serde_json::to_value(input)?);
        let fingerprint = Fingerprint::of(&[input.as_bytes()]);
        let config = self.config.clone().fingerprint(fingerprint);
        match self.begin_key(&key, &config).await? {
            Begun::Granted { ticket, attempt } => {
                let run = RunContext { fence: ticket.fence, attempt };
                self.run(&key, &ticket, effect(run), config.lease).await
            }
            Begun::Completed { response, .. } => {
                Ok(Once::replayed(serde_json::from_slice(&response.body)?))
            }
            Begun::InProgress { retry_after } => Err(OnceError::InProgress { retry_after }),
            Begun::KeyReused => Err(OnceError::KeyReused),
            Begun::OutcomeUnknown { since } => Err(OnceError::OutcomeUnknown { since }),
        }
    }

    async fn run<T: Serialize, E>(
        &self,
        key: &Key,
        ticket: &Ticket,
        effect: impl Future<Output = Result<T, E>>,
        lease: Duration,
    ) -> Result<Once<T>, OnceError<E>> {
        let token = &ticket.token;
        let store = self.store.as_ref();
        match claim_retry::run_while_renewing(store, key, token, lease, effect).await {
            Ok(value) => {
                let headers = vec![("content-type".to_owned(), "application/json".into())];
                let body = serde_json::to_vec(&value)?.into();
                let response = StoredResponse { status: 200, headers, body };
                self.complete_key(key, token, &response).await?;
                Ok(Once::first(value))
            }
            Err(error) => {
                // The effect's error matters more; where this fails too, the lease runs out.
                let _ = self.fail_key(key, token).await;
                Err(OnceError::Failed(error))
            }
        }
    }
}
