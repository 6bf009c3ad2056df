//! What every handler needs.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hapax::bus::{self, Bus};
use hapax::command::Commands;
use hapax::inbox::Inbox;
use hapax::lock::Locks;
use hapax::log::Keep;
use hapax::record::Documents;
use hapax::{Store, StoreError, Tenant};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::Instant;

use super::problem::{Problem, ProblemKind};
use super::request::admission::InFlight;
use super::request::auth::Access;
use super::sse::Streams;
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
    pub(crate) bus: Bus,
    pub(crate) streams: Streams,
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
            bus: bus(&settings, store.clone()),
            streams: Streams::new(&settings),
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

    pub(crate) fn inbox(&self, tenant: Tenant) -> Inbox {
        Inbox::new(self.store.clone()).tenant(tenant)
    }

    /// Why calls cannot be answered, where they cannot: no store, or events that do not arrive.
    pub(crate) fn why_not(&self) -> Option<String> {
        let behind = || {
            let late = self.bus.tail_age() > self.settings.event_tail_limit;
            late.then(|| "the tail of the events was not read for too long".to_owned())
        };
        self.readiness.why_not().or_else(behind)
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
                Err(Problem::new(ProblemKind::ShuttingDown, "nothing was begun; ask again")
                    .retry_after(Duration::from_secs(1)))
            }
        }
    }
}

fn bus(settings: &Settings, store: Arc<dyn Store>) -> Bus {
    let keep = Keep { lifetime: settings.event_lifetime, entries: settings.event_entries as u64 };
    let settings = bus::Settings {
        keep,
        finale: settings.event_final.0.clone(),
        largest: settings.body_limit,
        poll: settings.event_poll,
    };
    Bus::with(store, settings)
}
