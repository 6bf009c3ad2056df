use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CommandConfig, CommandError, StoredResponse};
use crate::{
    ClaimRequest, Claimed, Fingerprint, Key, OnceError, Operation, Tenant, Ticket, canonical_json,
};

/// The claim behind a `once`, shared by [`Commands::once`](super::Commands::once) and the
/// transactions of the SQL stores, so that each replays what the other stored.
#[derive(Clone, Debug)]
pub struct OnceClaim {
    /// The command.
    pub key: Key,
    /// The claim to ask for.
    pub request: ClaimRequest,
}

/// What to do after the claim of a `once`.
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
        let key = Key::command(tenant, operation, key)?;
        let input = canonical_json(&serde_json::to_value(input)?);
        let defaults = CommandConfig::default();
        let request = ClaimRequest::new(defaults.lease)
            .retention(retention.unwrap_or(defaults.retention))
            .fingerprint(Some(Fingerprint::of(&[input.as_bytes()])));
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

impl StoredResponse {
    /// A 200 with this value as JSON.
    pub fn json(value: &impl Serialize) -> serde_json::Result<Self> {
        let headers = vec![("content-type".to_owned(), "application/json".into())];
        Ok(Self { status: 200, headers, body: serde_json::to_vec(value)?.into() })
    }
}
