use std::future::Future;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Begun, CommandConfig, CommandError, Commands, StoredResponse};
use crate::{Fence, Fingerprint, Key, Ticket, canonical_json, claim_retry};

/// What [`Commands::once`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once<T> {
    /// The answer, of this run or of the first one.
    pub value: T,
    /// Whether it is the first one's.
    pub replayed: bool,
}

/// Why [`Commands::once`] has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The effect itself failed; it may be retried.
    #[error("the command failed")]
    Failed(#[source] E),
    /// Somebody else runs it now.
    #[error("the command is in progress; try again in {} ms", retry_after.as_millis())]
    InProgress {
        /// When its owner stops being believed alive, if it does not renew.
        retry_after: Duration,
    },
    /// The key was used with another input.
    #[error("the key was used before with another input")]
    KeyReused,
    /// An earlier owner went away, and may or may not have acted.
    #[error("an earlier attempt ended {} ms ago with an unknown outcome", since.as_millis())]
    OutcomeUnknown {
        /// How long ago.
        since: Duration,
    },
    /// The input or the answer is no JSON.
    #[error("the input or the answer cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// The effect ran, but the command was lost meanwhile, or the store gave no answer.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// What a running effect may pass on to what it writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunContext {
    /// Grows with every attempt of this command.
    pub fence: Fence,
    /// 1 for the first.
    pub attempt: u32,
}

impl Commands {
    /// Runs `effect` once for this key; everybody who asks again gets the same answer.
    ///
    /// The lease is renewed while the effect runs. An effect that returns an error gives the key
    /// back, and may be retried. A caller that goes away in the middle (the future is dropped, the
    /// process dies) leaves the outcome unknown; what then happens is
    /// [`CommandConfig::on_unknown`](super::Begin::on_unknown).
    pub async fn once<I, T, E, F>(
        &self,
        key: &str,
        operation: &str,
        input: &I,
        effect: impl FnOnce() -> F,
    ) -> Result<Once<T>, OnceError<E>>
    where
        I: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, E>>,
    {
        self.once_with(key, operation, input, |_| effect()).await
    }

    /// As [`Commands::once`], for effects that pass fence and attempt on.
    pub async fn once_with<I, T, E, F>(
        &self,
        key: &str,
        operation: &str,
        input: &I,
        effect: impl FnOnce(RunContext) -> F,
    ) -> Result<Once<T>, OnceError<E>>
    where
        I: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
        F: Future<Output = Result<T, E>>,
    {
        let key = Key::command(&self.tenant, operation, key).map_err(CommandError::from)?;
        let input = canonical_json(&serde_json::to_value(input)?);
        let fingerprint = Some(Fingerprint::of(&[input.as_bytes()]));
        let begin = CommandConfig { fingerprint, ..self.defaults.clone() };
        match self.begin_key(&key, &begin).await? {
            Begun::Granted { ticket, attempt } => {
                let run = RunContext { fence: ticket.fence, attempt };
                self.run(&key, &ticket, effect(run), begin.lease).await
            }
            Begun::Completed { response, .. } => {
                Ok(Once { value: serde_json::from_slice(&response.body)?, replayed: true })
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
        match claim_retry::run_while_renewing(self.store.as_ref(), key, token, lease, effect).await
        {
            Ok(value) => {
                let headers = vec![("content-type".to_owned(), "application/json".into())];
                let body = serde_json::to_vec(&value)?.into();
                self.complete_key(key, token, &StoredResponse { status: 200, headers, body })
                    .await?;
                Ok(Once { value, replayed: false })
            }
            Err(error) => {
                // Where this fails too, the lease decides; the effect's error is what matters.
                let _ = self.fail_key(key, token).await;
                Err(OnceError::Failed(error))
            }
        }
    }
}
