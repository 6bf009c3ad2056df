//! Whether the store answers and may be used, and whether every other component works.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use hapax::{Finding, Severity, Store, StoreError, metric_names};
use hapax_http::problem::describe_store_error;
use metrics::gauge;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;

use super::clock_check::ClockCheck;

/// How often the store is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the store, or of the shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadinessState {
    Ready,
    /// The store does not answer, and why. Calls are tried all the same: it may be back by now.
    Down(&'static str),
    /// The store answers, and must not be used in its condition.
    Unfit(String),
    Stopping,
}

/// The name of a component besides the store, and the check that gives the reason why it does not work.
type ComponentCheck = (&'static str, Box<dyn Fn() -> Option<String> + Send + Sync>);

/// The readiness of the process: its parts read it, and wait for its changes.
#[derive(Clone)]
pub(crate) struct Readiness {
    state: Arc<watch::Sender<ReadinessState>>,
    components: Arc<Mutex<Vec<ComponentCheck>>>,
    /// The checks that refuse the store, and that the operator accepts.
    accepted_risks: Arc<Mutex<Vec<&'static str>>>,
    /// How many checks of the store found something wrong.
    findings: Arc<watch::Sender<u64>>,
}

impl Default for Readiness {
    fn default() -> Self {
        let state = ReadinessState::Down("the store was not asked yet");
        let state = Arc::new(watch::Sender::new(state));
        let findings = Arc::new(watch::Sender::new(0));
        Self { state, components: Arc::default(), accepted_risks: Arc::default(), findings }
    }
}

impl Readiness {
    /// That of a store which answers and is not watched.
    #[cfg(test)]
    pub(crate) fn ready() -> Self {
        let readiness = Self::default();
        readiness.state.send_replace(ReadinessState::Ready);
        readiness
    }

    pub(crate) fn state(&self) -> ReadinessState {
        self.state.borrow().clone()
    }

    /// The component that keeps calls from being answered, and the reason.
    pub(crate) fn failure(&self) -> Option<(&'static str, String)> {
        match self.state() {
            ReadinessState::Ready => {
                let components = self.components.lock().unwrap_or_else(PoisonError::into_inner);
                components.iter().find_map(|(name, check)| Some((*name, check()?)))
            }
            ReadinessState::Down(reason) => Some(("store", reason.into())),
            ReadinessState::Unfit(reason) => Some(("store", reason)),
            ReadinessState::Stopping => Some(("process", "the server is shutting down".into())),
        }
    }

    /// Adds a component: the process is ready only while its check gives no reason against it.
    pub(crate) fn require(
        &self,
        component: &'static str,
        check: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) {
        let mut components = self.components.lock().unwrap_or_else(PoisonError::into_inner);
        components.push((component, Box::new(check)));
    }

    /// The checks that refuse the store, and that the operator accepts.
    pub(crate) fn accepted_risks(&self) -> Vec<&'static str> {
        self.accepted_risks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many checks of the store found something wrong.
    pub(crate) fn findings(&self) -> watch::Receiver<u64> {
        self.findings.subscribe()
    }

    /// Marks the process as shutting down, for good.
    pub(crate) fn stop(&self) {
        self.state.send_replace(ReadinessState::Stopping);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.state.borrow() == ReadinessState::Stopping
    }

    /// Completes when the process shuts down.
    pub(crate) async fn stopping(&self) {
        let mut state = self.state.subscribe();
        // The sender lives as long as `self`.
        let _ = state.wait_for(|state| *state == ReadinessState::Stopping).await;
    }

    /// Examines the store before the first request, and watches it from then on. A condition that
    /// cannot improve by waiting is an error; a store that does not answer yet is none.
    pub(super) async fn watch(
        &self,
        store: &Arc<dyn Store>,
        store_timeout: Duration,
        accepted: Vec<String>,
        metrics: &PrometheusHandle,
    ) -> anyhow::Result<()> {
        // Stores keep their own timeout; this one is for those that do not.
        let timeout = store_timeout * 2;
        let accepted_risks = self.accepted_risks.clone();
        let (store, counted) = (store.clone(), self.findings.clone());
        let mut examiner =
            StoreExaminer { store, timeout, accepted, accepted_risks, counted, examined: false };
        match examiner.examine().await {
            Ok(None) => self.set(ReadinessState::Ready),
            Ok(Some(reason)) => bail!("{reason}"),
            Err(error) if error.is_final() => return Err(error.into()),
            Err(error) => {
                tracing::warn!("starting without the store: {error}");
                self.set(ReadinessState::Down(describe_store_error(&error)));
            }
        }
        let (readiness, metrics) = (self.clone(), metrics.clone());
        let mut clocks = ClockCheck::default();
        let doubt = clocks.doubt();
        self.require("clock", move || doubt.reason());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PING_INTERVAL).await;
                clocks.look(&examiner.store, timeout).await;
                metrics.run_upkeep();
                readiness.set(match examiner.examine().await {
                    Ok(None) => ReadinessState::Ready,
                    Ok(Some(reason)) => ReadinessState::Unfit(reason),
                    // Waiting does not help, so say which file it is.
                    Err(error @ StoreError::Replaced { .. }) => {
                        ReadinessState::Unfit(error.to_string())
                    }
                    Err(error) => ReadinessState::Down(describe_store_error(&error)),
                });
            }
        });
        Ok(())
    }

    fn set(&self, state: ReadinessState) {
        gauge!(metric_names::STORE_UP).set(if state == ReadinessState::Ready { 1.0 } else { 0.0 });
        let changed = self.state.send_if_modified(|current| {
            let changes = *current != ReadinessState::Stopping && *current != state;
            if changes {
                *current = state.clone();
            }
            changes
        });
        match state {
            ReadinessState::Ready if changed => tracing::info!("the store answers"),
            ReadinessState::Down(reason) if changed => tracing::warn!("not ready: {reason}"),
            ReadinessState::Unfit(reason) if changed => tracing::error!("not ready: {reason}"),
            _ => {}
        }
    }
}

struct StoreExaminer {
    store: Arc<dyn Store>,
    timeout: Duration,
    /// The checks whose refusal the operator accepts.
    accepted: Vec<String>,
    accepted_risks: Arc<Mutex<Vec<&'static str>>>,
    /// How many checks found something wrong.
    counted: Arc<watch::Sender<u64>>,
    examined: bool,
}

impl StoreExaminer {
    /// Pings the store, and gives the reason why it must not be used, if any. A store that did not
    /// answer at the start is examined when it does, and again until it is fit.
    async fn examine(&mut self) -> Result<Option<String>, StoreError> {
        hapax::with_timeout(self.timeout, self.store.ping()).await?;
        if self.examined {
            return Ok(None);
        }
        let findings = hapax::with_timeout(self.timeout, self.store.examine()).await?;
        findings.iter().for_each(log_finding);
        let wrong = findings.iter().filter(|finding| finding.severity != Severity::Fine).count();
        self.counted.send_replace(wrong as u64);
        let refusals = findings.iter().filter(|finding| finding.severity == Severity::Refuse);
        let (accepted, refused): (Vec<_>, Vec<_>) =
            refusals.partition(|finding| self.accepted.iter().any(|name| name == finding.check));
        self.examined = refused.is_empty();
        if self.examined {
            self.report_accepted(&accepted);
        }
        Ok(refused.first().map(|finding| refusal(finding)))
    }

    fn report_accepted(&self, accepted: &[&Finding]) {
        for Finding { check, detail, .. } in accepted {
            tracing::warn!(check, "a risk is accepted: {detail}");
            gauge!(metric_names::ACCEPTED_RISK, "check" => *check).set(1.0);
        }
        for name in &self.accepted {
            if !accepted.iter().any(|finding| finding.check == name) {
                tracing::warn!("--accept-risk {name}: this store is not refused for that");
            }
        }
        let checks = accepted.iter().map(|finding| finding.check).collect();
        *self.accepted_risks.lock().unwrap_or_else(PoisonError::into_inner) = checks;
    }
}

fn log_finding(Finding { check, severity, detail, breaks, fix }: &Finding) {
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
        "the store must not be used like this ({check}): {detail}. It would break: {breaks}. \
         To fix it: {fix}; or accept it: --accept-risk {check}"
    )
}
