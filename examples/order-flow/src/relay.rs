//! The relay, as a task of one's own; `hapax relay` is the same as a command.

use std::sync::Arc;
use std::time::Duration;

use hapax::{Store, StoreConfig};
use hapax_relay::sinks::NatsSink;
use hapax_relay::{Relay, RelayConfig};

/// Drains the shop's outbox until it is killed.
pub(crate) async fn run(database: &str, nats: &str) -> anyhow::Result<()> {
    let store: Arc<dyn Store> = hapax::open(database, &StoreConfig::default())?;
    hapax::sweep_forever(store.clone(), Duration::from_secs(60));
    // A killed relay's rows are free again after its lease.
    let config = RelayConfig::new()
        .lease(Duration::from_secs(5))
        .max_attempts(1000)
        .retention(Duration::from_secs(86_400));
    Relay::with(store, Arc::new(NatsSink::new(nats)?), config).run(std::future::pending()).await;
    Ok(())
}
