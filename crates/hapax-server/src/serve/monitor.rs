//! What goes on beside the requests: whether the store answers, and sweeping what has expired.

use std::time::Duration;

use anyhow::bail;
use hapax::{Finding, Severity, StoreError, meters};
use metrics::{counter, gauge};

use super::app::App;
use super::problem::store_reason;
use super::readiness::State;

/// How often the store is asked whether it is there.
const LOOK: Duration = Duration::from_secs(1);
/// How many rows one sweep deletes, and how many sweeps follow each other at most.
const SWEEP_ROWS: u32 = 500;
const SWEEPS: usize = 200;

/// Looks at the store before the first request. What cannot get better by waiting is an error;
/// whether it could be looked at otherwise.
pub(crate) async fn first_look(app: &App) -> anyhow::Result<bool> {
    match examine(app).await {
        Ok(findings) => {
            if let Some(reason) = refusal(&findings) {
                bail!("{reason}");
            }
            set(app, State::Ready);
            Ok(true)
        }
        Err(error) if error.is_final() => Err(error.into()),
        Err(error) => {
            tracing::warn!("starting without the store: {error}");
            set(app, State::Down(store_reason(&error)));
            Ok(false)
        }
    }
}

/// Keeps readiness current for ever. A store that was not there at the start is examined when it
/// comes, and again until it is fit to be used.
pub(crate) async fn watch_store(app: App, mut examined: bool) {
    loop {
        tokio::time::sleep(LOOK).await;
        app.meters.run_upkeep();
        let state = match look(&app, &mut examined).await {
            Ok(None) => State::Ready,
            Ok(Some(reason)) => State::Unfit(reason),
            Err(error) => State::Down(store_reason(&error)),
        };
        set(&app, state);
    }
}

async fn look(app: &App, examined: &mut bool) -> Result<Option<String>, StoreError> {
    if *examined {
        return within(app, app.store.ping()).await.map(|()| None);
    }
    let reason = refusal(&examine(app).await?);
    *examined = reason.is_none();
    Ok(reason)
}

async fn examine(app: &App) -> Result<Vec<Finding>, StoreError> {
    within(app, app.store.ping()).await?;
    let findings = within(app, app.store.examine()).await?;
    for Finding { check, severity, detail, breaks, fix } in &findings {
        let breaks = breaks.map_or("-", |promise| promise.sentence());
        match severity {
            Severity::Fine => tracing::debug!(check, "{detail}"),
            Severity::Warn => tracing::warn!(check, breaks, fix, "{detail}"),
            Severity::Refuse => tracing::error!(check, breaks, fix, "{detail}"),
        }
    }
    Ok(findings)
}

/// Stores keep their own limit; this one is for those that do not.
async fn within<T>(
    app: &App,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    hapax::limited(app.settings.store_timeout * 2, call).await
}

fn refusal(findings: &[Finding]) -> Option<String> {
    let refused = findings.iter().find(|finding| finding.severity == Severity::Refuse)?;
    let breaks = refused.breaks.map_or("", |promise| promise.sentence());
    Some(format!(
        "the store must not be used like this ({}): {}. It would break: {breaks}. To fix it: {}",
        refused.check, refused.detail, refused.fix
    ))
}

fn set(app: &App, state: State) {
    gauge!(meters::STORE_UP).set(if state == State::Ready { 1.0 } else { 0.0 });
    if app.readiness.set(state.clone()) {
        match state {
            State::Ready => tracing::info!("the store answers"),
            State::Down(reason) => tracing::warn!("not ready: {reason}"),
            State::Unfit(reason) => tracing::error!("not ready: {reason}"),
            State::Stopping => {}
        }
    }
}

/// Deletes what has expired, now and then, a little at a time.
pub(crate) async fn sweep(app: App) {
    loop {
        tokio::time::sleep(app.settings.sweep_interval).await;
        for _ in 0..SWEEPS {
            match within(&app, app.store.sweep(SWEEP_ROWS)).await {
                Ok(swept) => {
                    counter!(meters::SWEPT).increment(swept);
                    if swept < u64::from(SWEEP_ROWS) {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(reason = error.label(), "sweeping failed: {error}");
                    break;
                }
            }
            // Requests come first.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
