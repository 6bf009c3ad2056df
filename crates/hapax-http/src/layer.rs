use std::fmt;
use std::sync::Arc;

use hapax_core::Claims;
use hapax_core::command::Commands;
use tower_layer::Layer;

use crate::Settings;

/// Puts [`Idempotency`] in front of a service.
#[derive(Clone)]
pub struct IdempotencyLayer {
    store: Arc<dyn Claims>,
    settings: Arc<Settings>,
}

impl IdempotencyLayer {
    /// Keeps claims and answers in this store.
    pub fn new(store: Arc<dyn Claims>, settings: Settings) -> Self {
        Self { store, settings: Arc::new(settings) }
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let commands = Commands::new(self.store.clone());
        Idempotency { inner, commands, settings: self.settings.clone() }
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// A service that runs once for each key.
#[derive(Clone)]
pub struct Idempotency<S> {
    pub(crate) inner: S,
    pub(crate) commands: Commands,
    pub(crate) settings: Arc<Settings>,
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}
