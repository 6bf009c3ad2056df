//! Whether the store answers and may be used, looked at beside the requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use hapax::{Finding, Severity, Store, StoreError, metric_names};
use hapax_http::problem::describe_store_error;
use metrics::gauge;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;

/// How often the store is asked whether it is there.
const LOOK: Duration = Duration::from_secs(1);

/// How the process stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The store answers.
    Ready,
    /// The store gives no answer, and why. Calls are tried all the same: it may be back by now.
    Down(&'static str),
    /// The store answers, and must not be used like this.
    Unfit(String),
    /// The process is shutting down.
    Stopping,
}

/// Why something besides the store does not get on, if so.
type Check = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The state, for everybody to read and to wait for.
#[derive(Clone)]
pub(crate) struct Health(Arc<watch::Sender<State>>, Arc<Mutex<Vec<Check>>>);

impl Default for Health {
    fn default() -> Self {
        let state = State::Down("the store was not asked yet");
        Self(Arc::new(watch::Sender::new(state)), Arc::default())
    }
}

impl Health {
    /// How it stands now.
    pub(crate) fn state(&self) -> State {
        self.0.borrow().clone()
    }

    /// Why calls cannot be answered, where they cannot.
    pub(crate) fn why_not(&self) -> Option<String> {
        match self.state() {
            State::Ready => self.checks().iter().find_map(|check| check()),
            State::Down(reason) => Some(reason.into()),
            State::Unfit(reason) => Some(reason),
            State::Stopping => Some("the server is shutting down".into()),
        }
    }

    /// From now on the process is ready only where this has no complaint either.
    pub(crate) fn require(&self, check: impl Fn() -> Option<String> + Send + Sync + 'static) {
        self.checks().push(Box::new(check));
    }

    fn checks(&self) -> std::sync::MutexGuard<'_, Vec<Check>> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process shuts down, and stays at that.
    pub(crate) fn stop(&self) {
        self.0.send_replace(State::Stopping);
    }

    /// Whether the process shuts down.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.0.borrow() == State::Stopping
    }

    /// Completes when the process shuts down.
    pub(crate) async fn stopping(&self) {
        let mut state = self.0.subscribe();
        // The sender lives as long as we do.
        let _ = state.wait_for(|state| *state == State::Stopping).await;
    }

    /// Looks at the store before the first request, and keeps the state current from then on. What
    /// cannot get better by waiting is an error; a store that does not answer yet is none.
    pub(crate) async fn watch(
        &self,
        store: &Arc<dyn Store>,
        limit: Duration,
        meters: &PrometheusHandle,
    ) -> anyhow::Result<()> {
        // Stores keep their own limit; this one is for those that do not.
        let mut look = Look { store: store.clone(), limit: limit * 2, examined: false };
        match look.again().await {
            Ok(None) => self.found(State::Ready),
            Ok(Some(reason)) => bail!("{reason}"),
            Err(error) if error.is_final() => return Err(error.into()),
            Err(error) => {
                tracing::warn!("starting without the store: {error}");
                self.found(State::Down(describe_store_error(&error)));
            }
        }
        let (health, meters) = (self.clone(), meters.clone());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                meters.run_upkeep();
                health.found(match look.again().await {
                    Ok(None) => State::Ready,
                    Ok(Some(reason)) => State::Unfit(reason),
                    Err(error) => State::Down(describe_store_error(&error)),
                });
            }
        });
        Ok(())
    }

    fn found(&self, state: State) {
        gauge!(metric_names::STORE_UP).set(if state == State::Ready { 1.0 } else { 0.0 });
        let changed = self.0.send_if_modified(|current| {
            let changes = *current != State::Stopping && *current != state;
            if changes {
                *current = state.clone();
            }
            changes
        });
        match state {
            State::Ready if changed => tracing::info!("the store answers"),
            State::Down(reason) if changed => tracing::warn!("not ready: {reason}"),
            State::Unfit(reason) if changed => tracing::error!("not ready: {reason}"),
            _ => {}
        }
    }
}

struct Look {
    store: Arc<dyn Store>,
    limit: Duration,
    examined: bool,
}

impl Look {
    /// Why the store must not be used, if so. One that was not there at the start is examined when
    /// it comes, and again until it is fit.
    async fn again(&mut self) -> Result<Option<String>, StoreError> {
        hapax::with_timeout(self.limit, self.store.ping()).await?;
        if self.examined {
            return Ok(None);
        }
        let findings = hapax::with_timeout(self.limit, self.store.examine()).await?;
        findings.iter().for_each(report);
        let refused = findings.iter().find(|finding| finding.severity == Severity::Refuse);
        self.examined = refused.is_none();
        Ok(refused.map(refusal))
    }
}

fn report(Finding { check, severity, detail, breaks, fix }: &Finding) {
    let breaks = breaks.map_or("-", |promise| promise.sentence());
    match severity {
        Severity::Fine => tracing::debug!(check, "{detail}"),
        Severity::Warn => tracing::warn!(check, breaks, fix, "{detail}"),
        Severity::Refuse => tracing::error!(check, breaks, fix, "{detail}"),
    }
}

fn refusal(Finding { check, detail, breaks, fix, .. }: &Finding) -> String {
    let breaks = breaks.map_or("", |promise| promise.sentence());
    format!(
        "the store must not be used like this ({check}): {detail}. It would break: {breaks}. To fix it: {fix}"
    )
}
