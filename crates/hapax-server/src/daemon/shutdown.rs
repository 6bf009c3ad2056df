//! The signals that stop a daemon, and how its connections are drained.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// `SIGTERM` and `SIGINT`.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Completes at the next of them.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Tells every connection to end.
#[derive(Default)]
pub(super) struct ConnectionDrain(watch::Sender<bool>);

/// A connection's end of the drain, which waits while this exists.
#[derive(Clone)]
pub(super) struct DrainSignal(watch::Receiver<bool>);

impl ConnectionDrain {
    pub(super) fn signal(&self) -> DrainSignal {
        DrainSignal(self.0.subscribe())
    }

    /// Tells every connection, and completes when all have ended.
    pub(super) async fn drain(self) {
        self.0.send_replace(true);
        self.0.closed().await;
    }
}

impl DrainSignal {
    /// Completes when the drain begins; never where the server is gone.
    pub(super) async fn begins(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending().await
        }
    }
}
