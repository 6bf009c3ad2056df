//! The state that every handler shares.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::FromRef;
use hapax::bus::BusConfig;
use hapax::command::Commands;
use hapax::document::Documents;
use hapax::inbox::Inbox;
use hapax::lock::Locks;
use hapax::log::LogRetention;
use hapax::{Store, StoreError, Tenant};
use hapax_http::MemoryBudget;
use metrics_exporter_prometheus::PrometheusHandle;

use super::request::admission::TenantRequestLimits;
use super::request::auth::AccessPolicy;
use super::request::session::ConsoleSessions;
use super::sse::{EventBus, EventStreams};
use super::v1::operator::activity::overview::StoreFindings;
use super::v1::operator::claim_counter::ClaimCounter;
use super::v1::{AuditLog, OperatorTasks};
use crate::daemon::{Readiness, ReadinessState};
use crate::problem::{Problem, ProblemKind};
use crate::settings::ServeSettings;

/// The shared state of the running server; clones are cheap.
#[derive(Clone)]
pub(crate) struct AppState(Arc<AppStateInner>);

pub(crate) struct AppStateInner {
    pub(crate) settings: ServeSettings,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) access: AccessPolicy,
    pub(crate) sessions: ConsoleSessions,
    /// The name that tells this process from others on the same store; the label of claims whose caller
    /// gives none.
    pub(crate) node: Arc<str>,
    pub(crate) audit: AuditLog,
    /// The doctor's findings, for the overview.
    pub(crate) findings: StoreFindings,
    /// The claims of each tenant, where the store cannot count them.
    pub(crate) claim_counter: ClaimCounter,
    pub(crate) tasks: OperatorTasks,
    pub(crate) request_limits: TenantRequestLimits,
    /// Operator requests have limits of their own, so that a full tenant can still be mended.
    pub(crate) operator_limits: TenantRequestLimits,
    pub(crate) readiness: Readiness,
    pub(crate) bus: EventBus,
    pub(crate) streams: EventStreams,
    pub(crate) metrics: PrometheusHandle,
    /// The memory of all request bodies and what they are parsed into.
    pub(crate) memory: MemoryBudget,
    /// The bound address, set once the listener is open.
    pub(crate) address: OnceLock<SocketAddr>,
}

impl std::ops::Deref for AppState {
    type Target = AppStateInner;

    fn deref(&self) -> &AppStateInner {
        &self.0
    }
}

impl FromRef<AppState> for Readiness {
    fn from_ref(app: &AppState) -> Self {
        app.readiness.clone()
    }
}

impl FromRef<AppState> for PrometheusHandle {
    fn from_ref(app: &AppState) -> Self {
        app.metrics.clone()
    }
}

impl AppState {
    pub(crate) fn new(
        settings: ServeSettings,
        access: AccessPolicy,
        store: Arc<dyn Store>,
        metrics: PrometheusHandle,
        readiness: Readiness,
        node: Arc<str>,
    ) -> Self {
        let bus = bus(&settings, store.clone());
        let (events, timeout) = (bus.clone(), settings.event_tail_timeout);
        readiness.require("events", move || {
            let late = events.tail_age() > timeout;
            late.then(|| "the tail of the event log was not read for too long".to_owned())
        });
        let tenants: HashSet<_> = access.tenants().into_iter().collect();
        Self(Arc::new(AppStateInner {
            request_limits: TenantRequestLimits::new(&access, settings.in_flight),
            operator_limits: TenantRequestLimits::new(&access, settings.in_flight),
            access,
            sessions: ConsoleSessions::default(),
            audit: AuditLog::new(store.clone(), node.clone()),
            node,
            tasks: OperatorTasks::default(),
            findings: StoreFindings::default(),
            claim_counter: ClaimCounter::default(),
            readiness,
            bus,
            streams: EventStreams::new(&settings, tenants.len()),
            memory: MemoryBudget::new(settings.buffer_memory.0),
            address: OnceLock::new(),
            settings,
            store,
            metrics,
        }))
    }

    pub(crate) fn locks(&self, tenant: &Tenant) -> Locks {
        Locks::new(self.store.clone()).tenant(tenant.clone()).source("api").label(&self.node)
    }

    pub(crate) fn documents(&self, tenant: &Tenant) -> Documents {
        Documents::new(self.store.clone())
            .tenant(tenant.clone())
            .max_bytes(self.settings.body_limit)
    }

    pub(crate) fn commands(&self, tenant: &Tenant) -> Commands {
        Commands::new(self.store.clone()).tenant(tenant.clone()).label(&self.node)
    }

    pub(crate) fn inbox(&self, tenant: &Tenant) -> Inbox {
        Inbox::new(self.store.clone()).tenant(tenant.clone()).label(&self.node)
    }

    /// A command line to try the API with.
    pub(crate) fn example(&self) -> String {
        let token = match &self.access {
            AccessPolicy::LocalOnly(_) => "",
            AccessPolicy::Tokens(_) => " -H \"Authorization: Bearer $HAPAX_TOKEN\"",
        };
        format!("curl -i{token} -X POST http://{}/v1/locks/demo", self.shown_address())
    }

    pub(crate) fn shown_address(&self) -> String {
        self.address.get().map_or_else(String::new, SocketAddr::to_string)
    }

    /// Refuses calls of a store that must not be used.
    pub(crate) fn check_store_fit(&self) -> Result<(), Problem> {
        match self.readiness.state() {
            ReadinessState::Unfit(reason) => {
                let problem = Problem::new(ProblemKind::StoreUnavailable, reason);
                Err(problem.retry_after(Duration::from_secs(5)))
            }
            _ => Ok(()),
        }
    }

    /// [`Self::call_store_waiting`] for a request that does not wait.
    pub(crate) async fn call_store<T, E: Into<Problem>>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Problem> {
        self.call_store_waiting(Duration::ZERO, call).await
    }

    /// Runs `call` with a bound on its store calls: a response is sent within 5 s (with the default
    /// timeout of one store call) beyond `wait`, the time that the client asked to wait. A waiting
    /// client gets `shutting-down` at once when the server stops.
    pub(crate) async fn call_store_waiting<T, E: Into<Problem>>(
        &self,
        wait: Duration,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Problem> {
        let limit = self.settings.store_timeout * 2 + Duration::from_millis(500);
        tokio::select! {
            answer = tokio::time::timeout(wait + limit, call) => match answer {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(StoreError::Timeout { timeout: limit }.into()),
            },
            () = self.readiness.stopping(), if !wait.is_zero() => {
                Err(Problem::new(ProblemKind::ShuttingDown, "nothing was begun; ask again")
                    .retry_after(Duration::from_secs(1)))
            }
        }
    }
}

fn bus(settings: &ServeSettings, store: Arc<dyn Store>) -> EventBus {
    let max_entries = settings.event_entries as u64;
    let config = BusConfig::default()
        .retention(LogRetention { retention: settings.event_retention, max_entries })
        .closing_event(settings.event_final.0.clone())
        .max_event_bytes(settings.body_limit)
        .poll_interval(settings.event_poll);
    EventBus::with_frames(store, config)
}
