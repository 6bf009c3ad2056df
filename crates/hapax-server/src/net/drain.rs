//! The end of all connections: each is told, and the last one is waited for.

use tokio::sync::watch;

/// Tells.
#[derive(Default)]
pub(super) struct Drain(watch::Sender<bool>);

/// Is told, and waited for while it is there.
#[derive(Clone)]
pub(super) struct Stopping(watch::Receiver<bool>);

impl Drain {
    pub(super) fn watcher(&self) -> Stopping {
        Stopping(self.0.subscribe())
    }

    /// Tells everybody, and completes when all have gone.
    pub(super) async fn drain(self) {
        self.0.send_replace(true);
        self.0.closed().await;
    }
}

impl Stopping {
    /// Completes when it is told; never where nobody will.
    pub(super) async fn told(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending().await
        }
    }
}
