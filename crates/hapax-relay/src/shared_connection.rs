//! One connection for many senders.

use std::future::Future;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::DeliveryError;

/// A connection that is made when it is first needed, and anew after it was lost.
pub(crate) struct SharedConnection<C>(Mutex<Slot<C>>);

/// Something that may be gone without anybody having used it: a message that is sent over it then was
/// never on its way.
pub(crate) trait LiveConnection: Clone {
    fn is_alive(&self) -> bool;
}

struct Slot<C> {
    /// Which connection it is; whoever loses one says so once.
    number: u64,
    connection: Option<C>,
    /// When connecting last failed, and why.
    failed: Option<(Instant, DeliveryError)>,
}

impl<C: LiveConnection> SharedConnection<C> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Slot { number: 0, connection: None, failed: None }))
    }

    /// The connection, with its number. Of many who ask at once one connects; where that fails, the
    /// others are told the same and do not try one after the other.
    pub(crate) async fn get<F>(
        &self,
        connect: impl FnOnce() -> F,
    ) -> Result<(u64, C), DeliveryError>
    where
        F: Future<Output = Result<C, DeliveryError>>,
    {
        let asked_at = Instant::now();
        let mut slot = self.0.lock().await;
        if let Some(connection) = slot.connection.as_ref().filter(|c| c.is_alive()) {
            return Ok((slot.number, connection.clone()));
        }
        if let Some((at, failure)) = &slot.failed
            && *at > asked_at
        {
            return Err(failure.clone());
        }
        match connect().await {
            Ok(connection) => {
                slot.number += 1;
                slot.connection = Some(connection.clone());
                Ok((slot.number, connection))
            }
            Err(failure) => {
                slot.failed = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    /// The connection, where there is one and it lives as far as is known.
    pub(crate) async fn current(&self) -> Option<C> {
        self.0.lock().await.connection.clone().filter(C::is_alive)
    }

    /// A new connection, whatever the one there was is like: one that a firewall has forgotten says
    /// nothing, for ever, and does not end either.
    pub(crate) async fn get_anew<F>(
        &self,
        connect: impl FnOnce() -> F,
    ) -> Result<(u64, C), DeliveryError>
    where
        F: Future<Output = Result<C, DeliveryError>>,
    {
        self.0.lock().await.connection = None;
        self.get(connect).await
    }

    /// The connection with this number is of no use any more.
    pub(crate) async fn lose(&self, number: u64) {
        let mut slot = self.0.lock().await;
        if slot.number == number {
            slot.connection = None;
        }
    }
}
