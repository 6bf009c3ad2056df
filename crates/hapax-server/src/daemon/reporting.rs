//! Reports this process and its activity to the store, so that the console of any `serve` on it shows them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hapax::Store;
use hapax::activity::{ActivityReport, ActivityReporter, NodeStatus};

use super::boot::DaemonSettings;
use super::readiness::{Readiness, ReadinessState};

/// Starts the reporter, unless it is turned off. Nothing is written to a store that was not found fit for use.
pub(super) fn start(
    store: &Arc<dyn Store>,
    readiness: &Readiness,
    settings: &DaemonSettings<'_>,
    node: &str,
) -> anyhow::Result<Option<ActivityReporter>> {
    if settings.report_interval.is_zero() {
        return Ok(None);
    }
    let is_api = settings.edge == "api";
    // A relay may be busy while nobody calls the API, and then no other node measures its queue.
    let has_queues = is_api || settings.edge == "relay";
    let report = ActivityReport::new(settings.edge)
        .node(node)
        .edge(settings.edge)
        .interval(settings.report_interval)
        .store_timeout(settings.store_timeout)
        .claims_are_requests(!is_api)
        .with_depths(has_queues)
        .may_write(store_is_ready(readiness.clone()));
    let reporter = hapax::report_activity(store.clone(), report)?;
    follow_findings(readiness, reporter.status());
    Ok(Some(reporter))
}

/// Whether the store may be written to. While the process stops, as it was before.
fn store_is_ready(readiness: Readiness) -> impl Fn() -> bool + Send + Sync {
    let was_ready = AtomicBool::new(false);
    move || {
        match readiness.state() {
            ReadinessState::Ready => was_ready.store(true, Ordering::Relaxed),
            ReadinessState::Down(_) | ReadinessState::Unfit(_) => {
                was_ready.store(false, Ordering::Relaxed);
            }
            ReadinessState::Stopping => {}
        }
        was_ready.load(Ordering::Relaxed)
    }
}

fn follow_findings(readiness: &Readiness, status: NodeStatus) {
    let mut findings = readiness.findings();
    tokio::spawn(async move {
        loop {
            let count = *findings.borrow_and_update();
            status.set_findings(count);
            if findings.changed().await.is_err() {
                return;
            }
        }
    });
}
