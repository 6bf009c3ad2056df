//! The relay, as a task of one's own; `hapax relay` is the same as a command.

use std::sync::Arc;
use std::time::Duration;

use hapax::{Options, Store};
use hapax_relay::sinks::Nats;
use hapax_relay::{Relay, Settings};

/// Drains the shop's outbox until it is killed.
pub(crate) async fn run(database: &str, nats: &str) -> anyhow::Result<()> {
    let store: Arc<dyn Store> = hapax::open(database, &Options::default()).await?;
    hapax::sweep_forever(store.clone(), Duration::from_secs(60));
    // A killed relay's rows are free again after its lease.
    let settings = Settings {
        lease: Duration::from_secs(5),
        max_attempts: 1000,
        keep: Duration::from_secs(86_400),
        ..Settings::default()
    };
    Relay::with(store, Arc::new(Nats::new(nats)?), settings).run(std::future::pending()).await;
    Ok(())
}
