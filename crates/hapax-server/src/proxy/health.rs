//! Whether the store answers and may be used.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use hapax::{Finding, Severity, Store, StoreError, meters};
use metrics::gauge;
use tokio::sync::watch;

/// How often the store is asked whether it is there.
const LOOK: Duration = Duration::from_secs(1);

/// How the proxy stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Ready,
    /// The store gives no answer, and why.
    Down(&'static str),
    Stopping,
}

/// The standing, for everybody to read.
#[derive(Clone)]
pub(crate) struct Health(Arc<watch::Sender<Standing>>);

impl Health {
    /// Looks at the store before the first request. What cannot get better by waiting is an error; a
    /// store that does not answer yet is none.
    pub(crate) async fn first_look(store: &dyn Store, limit: Duration) -> anyhow::Result<Self> {
        let health = Self(Arc::new(watch::Sender::new(Standing::Down("unavailable"))));
        match examine(store, limit).await {
            Ok(findings) => {
                refuse(&findings)?;
                health.set(Standing::Ready);
            }
            Err(error) if error.is_final() => return Err(error.into()),
            Err(error) => {
                tracing::warn!("starting without the store: {error}");
                health.set(Standing::Down(error.label()));
            }
        }
        Ok(health)
    }

    /// How it stands now.
    pub(crate) fn standing(&self) -> Standing {
        *self.0.borrow()
    }

    /// A proxy that stops stays stopping.
    pub(crate) fn set(&self, standing: Standing) {
        let changed = self.0.send_if_modified(|current| {
            let changes = *current != Standing::Stopping && *current != standing;
            if changes {
                *current = standing;
            }
            changes
        });
        gauge!(meters::STORE_UP).set(if standing == Standing::Ready { 1.0 } else { 0.0 });
        match standing {
            Standing::Ready if changed => tracing::info!("the store answers"),
            Standing::Down(reason) if changed => {
                tracing::warn!(reason, "the store does not answer")
            }
            _ => {}
        }
    }

    /// Keeps it current for ever.
    pub(crate) async fn keep(self, store: Arc<dyn Store>, limit: Duration) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.set(match hapax::limited(limit * 2, store.ping()).await {
                Ok(()) => Standing::Ready,
                Err(error) => Standing::Down(error.label()),
            });
        }
    }
}

async fn examine(store: &dyn Store, limit: Duration) -> Result<Vec<Finding>, StoreError> {
    // Stores keep their own limit; this one is for those that do not.
    hapax::limited(limit * 2, store.ping()).await?;
    hapax::limited(limit * 2, store.examine()).await
}

fn refuse(findings: &[Finding]) -> anyhow::Result<()> {
    for Finding { check, severity, detail, breaks, fix } in findings {
        let breaks = breaks.map_or("-", |promise| promise.sentence());
        match severity {
            Severity::Fine => tracing::debug!(check, "{detail}"),
            Severity::Warn => tracing::warn!(check, breaks, fix, "{detail}"),
            Severity::Refuse => bail!(
                "the store must not be used like this ({check}): {detail}. It would break: {breaks}. \
                 To fix it: {fix}"
            ),
        }
    }
    Ok(())
}
