//! Where the lock is: behind a server, or in a store that is opened directly.

use std::time::Duration;

use hapax::lock::{LockError, Locks};
use hapax::{StoreError, Token};
use serde::Deserialize;

use super::Args;
use crate::client::lock::{release_call, renew_call, take_call};
use crate::client::{Api, Call, Connect, Failure};

/// Takes, renews and releases one lock.
pub(super) struct Door {
    key: String,
    way: Way,
}

enum Way {
    Server(Api),
    Store(Locks),
}

/// Proof that the lock is ours.
#[derive(Deserialize)]
pub(super) struct Ticket {
    pub(super) token: String,
    pub(super) fence: u64,
}

/// Why not.
pub(super) enum Refusal {
    /// Somebody else has it.
    Held(Failure),
    /// It is not ours any more.
    Lost(Failure),
    /// Nobody knows.
    Failed(Failure),
}

impl Door {
    pub(super) async fn open(args: &Args, connect: &Connect) -> Result<Self, Failure> {
        let way = match &args.store {
            None => Way::Server(connect.api()?),
            Some(url) => {
                let store =
                    hapax::open(url, &hapax::StoreConfig::default()).await.map_err(in_store)?;
                Way::Store(Locks::new(store).source("cli"))
            }
        };
        Ok(Self { key: args.key.clone(), way })
    }

    /// Takes it, waiting up to `wait`.
    pub(super) async fn take(&self, ttl: Duration, wait: Duration) -> Result<Ticket, Refusal> {
        match &self.way {
            Way::Server(api) => {
                let answer = send(api, take_call(&self.key, ttl, wait)).await?;
                answer.read().map_err(Refusal::Failed)
            }
            Way::Store(locks) => {
                let ticket = locks.take(&self.key, ttl, wait).await.map_err(refusal)?;
                let token = ticket.token.as_str().to_owned();
                Ok(Ticket { token, fence: ticket.fence.0 })
            }
        }
    }

    /// Makes it last `ttl` from now; gives up after `limit`.
    pub(super) async fn renew(
        &self,
        ticket: &Ticket,
        ttl: Duration,
        limit: Duration,
    ) -> Result<(), Refusal> {
        match &self.way {
            Way::Server(api) => {
                let call = renew_call(&self.key, &ticket.token, ttl);
                send(api, call.within(limit)).await.map(drop)
            }
            Way::Store(locks) => {
                let token = Token::presented(&ticket.token);
                let renewed = tokio::time::timeout(limit, locks.renew(&self.key, &token, ttl));
                let late = |_| Refusal::Failed(in_store(StoreError::Timeout { timeout: limit }));
                renewed.await.map_err(late)?.map(drop).map_err(refusal)
            }
        }
    }

    /// Releases it, if it is still ours.
    pub(super) async fn release(&self, ticket: &Ticket) -> Result<(), Refusal> {
        match &self.way {
            Way::Server(api) => send(api, release_call(&self.key, &ticket.token)).await.map(drop),
            Way::Store(locks) => {
                let token = Token::presented(&ticket.token);
                locks.release(&self.key, &token).await.map_err(refusal)
            }
        }
    }
}

async fn send(api: &Api, call: Call) -> Result<crate::client::Answer, Refusal> {
    api.send(call).await.map_err(|failure| {
        if failure.is("lock-held") {
            Refusal::Held(failure)
        } else if failure.is("lock-lost") {
            Refusal::Lost(failure)
        } else {
            Refusal::Failed(failure)
        }
    })
}

fn refusal(error: LockError) -> Refusal {
    match error {
        LockError::Held { .. } => Refusal::Held(Failure::Held(error.to_string())),
        LockError::Lost => Refusal::Lost(Failure::Local(error.to_string())),
        LockError::Store(error) => Refusal::Failed(in_store(error)),
        other => Refusal::Failed(Failure::Usage(other.to_string())),
    }
}

fn in_store(error: StoreError) -> Failure {
    Failure::Store(error.to_string())
}
