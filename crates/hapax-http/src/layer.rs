use std::fmt;
use std::sync::Arc;

use hapax_core::Claims;
use hapax_core::command::Commands;
use tower_layer::Layer;

use crate::Settings;
use crate::drain::Gate;

/// Puts [`Idempotency`] in front of a service.
#[derive(Clone)]
pub struct IdempotencyLayer {
    shared: Arc<Shared>,
}

/// What all requests have in common.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Claims>,
    pub(crate) commands: Commands,
    pub(crate) settings: Settings,
    pub(crate) gate: Gate,
}

impl IdempotencyLayer {
    /// Keeps claims and answers in this store.
    pub fn new(store: Arc<dyn Claims>, settings: Settings) -> Self {
        let commands = Commands::new(store.clone());
        Self { shared: Arc::new(Shared { store, commands, settings, gate: Gate::default() }) }
    }

    /// Closes the layer: from this call on keyed requests are refused with 503 `shutting-down`, and
    /// the future completes when every first run that had begun is over and its answer is stored.
    ///
    /// A first run outlives its connection, so a server that only waits for its connections would
    /// end in the middle of one. Wait for both, for as long as you can afford to:
    ///
    /// ```no_run
    /// # use std::{sync::Arc, time::Duration};
    /// # use axum::Router; use hapax_http::{IdempotencyLayer, Settings};
    /// # use hapax_core::memory::MemoryStore;
    /// # async fn serve(listener: tokio::net::TcpListener) -> std::io::Result<()> {
    /// # async fn sigterm() {}
    /// let layer = IdempotencyLayer::new(Arc::new(MemoryStore::default()), Settings::default());
    /// let app: Router = Router::new().layer(layer.clone());
    /// axum::serve(listener, app).with_graceful_shutdown(sigterm()).await?;
    /// let _ = tokio::time::timeout(Duration::from_secs(20), layer.drain()).await;
    /// # Ok(()) }
    /// ```
    pub fn drain(&self) -> impl Future<Output = ()> + Send + use<> {
        self.shared.gate.close()
    }

    /// How many first runs there are now, in every service that this layer was put in front of.
    pub fn running(&self) -> usize {
        self.shared.gate.running()
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Idempotency { inner, shared: self.shared.clone() }
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("settings", &self.shared.settings)
            .finish_non_exhaustive()
    }
}

/// A service that runs once for each key.
#[derive(Clone)]
pub struct Idempotency<S> {
    pub(crate) inner: S,
    pub(crate) shared: Arc<Shared>,
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}
