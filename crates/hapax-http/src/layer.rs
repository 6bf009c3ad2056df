use std::fmt;
use std::sync::Arc;

use hapax_core::Claims;
use hapax_core::command::Commands;
use tokio::sync::watch;
use tower_layer::Layer;

use crate::{Idempotency, IdempotencyConfig};

/// Puts [`Idempotency`] in front of a service.
#[derive(Clone)]
pub struct IdempotencyLayer {
    shared: Arc<Shared>,
}

/// The state that all requests of a layer share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Claims>,
    pub(crate) commands: Commands,
    pub(crate) config: IdempotencyConfig,
    pub(crate) first_runs: FirstRuns,
}

impl IdempotencyLayer {
    /// Keeps claims and responses in this store, with the default configuration.
    pub fn new(store: Arc<dyn Claims>) -> Self {
        Self::with(store, IdempotencyConfig::default())
    }

    /// Replaces the configuration. Call it before [`Layer::layer`]: services made before it are not
    /// part of what [`drain`](Self::drain) waits for.
    #[must_use]
    pub fn with_config(self, config: IdempotencyConfig) -> Self {
        Self::with(self.shared.store.clone(), config)
    }

    fn with(store: Arc<dyn Claims>, config: IdempotencyConfig) -> Self {
        // The layer may ask twice for one request, and records its activity itself.
        let commands = Commands::new(store.clone()).without_activity();
        let first_runs = FirstRuns::default();
        Self { shared: Arc::new(Shared { store, commands, config, first_runs }) }
    }

    /// Closes the layer: from this call on keyed requests are refused with 503 `shutting-down`, and
    /// the future completes when every first run that had begun is over and its response is stored.
    /// An event stream in response to a keyed request is over when it ends.
    ///
    /// A first run outlives its connection, so a server that only waits for its connections would
    /// exit during one. Wait for both, for as long as you can afford to:
    ///
    /// ```no_run
    /// # use std::{sync::Arc, time::Duration};
    /// # use axum::Router; use hapax_http::IdempotencyLayer;
    /// # use hapax_core::memory::MemoryStore;
    /// # async fn serve(listener: tokio::net::TcpListener) -> std::io::Result<()> {
    /// # async fn sigterm() {}
    /// let layer = IdempotencyLayer::new(Arc::new(MemoryStore::default()));
    /// let app: Router = Router::new().layer(layer.clone());
    /// axum::serve(listener, app).with_graceful_shutdown(sigterm()).await?;
    /// let _ = tokio::time::timeout(Duration::from_secs(20), layer.drain()).await;
    /// # Ok(()) }
    /// ```
    pub fn drain(&self) -> impl Future<Output = ()> + Send + use<> {
        let FirstRuns(runs) = self.shared.first_runs.clone();
        runs.send_replace(true);
        async move { runs.closed().await }
    }

    /// The number of first runs now, over every service that this layer was put in front of.
    pub fn running(&self) -> usize {
        self.shared.first_runs.0.receiver_count()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency::new(inner, self.shared.clone())
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

/// Counts the first runs, and refuses new ones once closed. Each run has a receiver of the channel,
/// whose value is whether the layer is closed.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstRuns(watch::Sender<bool>);

/// One counted first run.
pub(crate) type FirstRunGuard = watch::Receiver<bool>;

impl FirstRuns {
    /// Counts one more run until the guard is dropped; `None` once closed.
    pub(crate) fn enter(&self) -> Option<FirstRunGuard> {
        // Subscribe before the check: a drain that begins in between waits for this guard.
        let guard = self.0.subscribe();
        (!self.is_closed()).then_some(guard)
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.0.borrow()
    }
}
