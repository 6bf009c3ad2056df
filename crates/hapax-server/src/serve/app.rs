//! What every handler needs.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hapax::command::Commands;
use hapax::lock::Locks;
use hapax::record::Documents;
use hapax::{Store, StoreError, Tenant};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::Instant;

use super::auth::Access;
use super::limits::InFlight;
use super::problem::{Problem, SHUTTING_DOWN};
use crate::health::Health;
use crate::settings::Settings;

/// The running server.
#[derive(Clone)]
pub(crate) struct App(Arc<Shared>);

/// What its handlers share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) access: Access,
    pub(crate) in_flight: InFlight,
    /// Those of operators, who have their own places.
    pub(crate) operators: InFlight,
    pub(crate) readiness: Health,
    pub(crate) meters: PrometheusHandle,
    pub(crate) started: Instant,
    /// Where it listens, once it does.
    pub(crate) address: OnceLock<SocketAddr>,
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl App {
    pub(crate) fn new(
        settings: Settings,
        access: Access,
        store: Arc<dyn Store>,
        meters: PrometheusHandle,
    ) -> Self {
        Self(Arc::new(Shared {
            in_flight: InFlight::new(&access, settings.in_flight),
            operators: InFlight::new(&access, settings.in_flight),
            access,
            readiness: Health::default(),
            started: Instant::now(),
            address: OnceLock::new(),
            settings,
            store,
            meters,
        }))
    }

    pub(crate) fn locks(&self, tenant: Tenant) -> Locks {
        Locks::new(self.store.clone()).tenant(tenant).source("api")
    }

    pub(crate) fn documents(&self, tenant: Tenant) -> Documents {
        Documents::new(self.store.clone()).tenant(tenant).limit(self.settings.body_limit)
    }

    pub(crate) fn commands(&self, tenant: Tenant) -> Commands {
        Commands::new(self.store.clone()).tenant(tenant)
    }

    /// Asks the store. However many store calls it takes, an answer comes within 5 s (with the
    /// default limit of one call) beyond what the caller wanted to wait; who waits is told at once
    /// when the server stops.
    pub(crate) async fn ask<T, E: Into<Problem>>(
        &self,
        wait: Duration,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Problem> {
        let limit = self.settings.store_timeout * 2 + Duration::from_millis(500);
        tokio::select! {
            answer = tokio::time::timeout(wait + limit, call) => match answer {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(StoreError::Timeout { limit }.into()),
            },
            () = self.readiness.stopping(), if !wait.is_zero() => {
                Err(Problem::new(&SHUTTING_DOWN, "nothing was begun; ask again")
                    .retry_after(Duration::from_secs(1)))
            }
        }
    }
}
