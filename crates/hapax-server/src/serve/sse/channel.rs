//! A stream that the HTTP library writes.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::source::Framing;
use super::stream::{Ended, Outlet};

/// The HTTP library, which takes a piece when it has room.
pub(super) struct Channel {
    pieces: mpsc::Sender<Bytes>,
    limit: Duration,
}

impl Channel {
    pub(super) fn new(pieces: mpsc::Sender<Bytes>, limit: Duration) -> Self {
        Self { pieces, limit }
    }
}

impl Outlet for Channel {
    const FRAMING: Framing = Framing::Plain;
    const MAY_IDLE: bool = false;

    async fn write(&mut self, pieces: &mut Vec<Bytes>) -> Result<(), Ended> {
        for piece in pieces.drain(..) {
            match timeout(self.limit, self.pieces.send(piece)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Ended::Client),
                Err(_) => return Err(Ended::Slow),
            }
        }
        Ok(())
    }

    async fn gone(&mut self) {
        self.pieces.closed().await;
    }
}
