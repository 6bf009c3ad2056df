//! The relay as a task inside a program; the command `hapax relay` does the same.

use std::sync::Arc;
use std::time::Duration;

use hapax::{Store, StoreConfig};
use hapax_relay::sinks::NatsSink;
use hapax_relay::{Relay, RelayConfig};

/// Drains the shop's outbox until the process is killed.
pub(crate) async fn run(database: &str, nats: &str) -> anyhow::Result<()> {
    let store: Arc<dyn Store> = hapax::open(database, &StoreConfig::default())?;
    hapax::sweep_forever(store.clone(), Duration::from_secs(60));
    // The short lease frees the rows of a killed relay soon.
    let config = RelayConfig::new()
        .lease(Duration::from_secs(5))
        .max_attempts(1000)
        .retention(Duration::from_secs(86_400));
    Relay::with(store, Arc::new(NatsSink::new(nats)?), config).run(std::future::pending()).await;
    Ok(())
}
