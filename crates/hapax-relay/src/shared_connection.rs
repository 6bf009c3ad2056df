//! One connection that many senders share.

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::DeliveryError;

/// A connection that is opened when it is first needed, and again after it was lost.
pub(crate) struct SinkConnection<C>(Mutex<ConnectionSlot<C>>);

/// A connection that can tell that it was lost before a message is sent over it.
pub(crate) trait LiveConnection: Clone {
    fn is_alive(&self) -> bool;
}

struct ConnectionSlot<C> {
    /// The number of the connection: only a report about the current one discards it.
    number: u64,
    connection: Option<C>,
    /// When connecting last failed, and why.
    failed: Option<(Instant, DeliveryError)>,
}

impl<C: LiveConnection> SinkConnection<C> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(ConnectionSlot { number: 0, connection: None, failed: None }))
    }

    /// The connection, with its number. Of many concurrent callers one connects; if that fails, the
    /// others get the same error and do not try one after the other.
    pub(crate) async fn get_or_connect(
        &self,
        connect: impl AsyncFnOnce() -> Result<C, DeliveryError>,
    ) -> Result<(u64, C), DeliveryError> {
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

    /// The connection, if there is one that is alive as far as is known.
    #[cfg(feature = "amqp")]
    pub(crate) async fn current(&self) -> Option<C> {
        self.0.lock().await.connection.clone().filter(C::is_alive)
    }

    /// Opens a new connection even if there is one: a connection that a firewall has dropped neither answers
    /// nor ends.
    pub(crate) async fn reconnect(
        &self,
        connect: impl AsyncFnOnce() -> Result<C, DeliveryError>,
    ) -> Result<(u64, C), DeliveryError> {
        self.0.lock().await.connection = None;
        self.get_or_connect(connect).await
    }

    /// Discards the connection with this number.
    pub(crate) async fn discard(&self, number: u64) {
        let mut slot = self.0.lock().await;
        if slot.number == number {
            slot.connection = None;
        }
    }
}
