//! What the outbox, the relay and the inbox cost.

mod brokers;
mod consumer;
mod drain;
mod fill;
mod nothing;
mod run;
mod transactions;

use std::time::Duration;

use clap::ValueEnum;

use crate::arena::Engine;

/// The arguments of `hapax-bench relay`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    part: Vec<Part>,
    /// How many rows are drained into a sink that does nothing; a fifth of them into each broker.
    #[arg(long, default_value_t = 100_000)]
    rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Business transactions with an outbox row, beside those without.
    Enqueue,
    /// A relay whose sink does nothing, on each store.
    Drain,
    /// A relay into each broker, beside the broker's own client.
    Brokers,
    /// Business transactions with the inbox, beside those without; and consumers of NATS.
    Inbox,
}

/// Measures all of it and prints the tables.
pub(crate) async fn compare(
    args: &Args,
    engines: &[Engine],
    seconds: Duration,
) -> anyhow::Result<()> {
    let rows = args.rows.max(100);
    for part in Part::value_variants() {
        if !args.part.is_empty() && !args.part.contains(part) {
            continue;
        }
        match part {
            Part::Enqueue => transactions::with_outbox(engines, seconds).await?,
            Part::Drain => nothing::drain(engines, rows).await?,
            Part::Brokers => brokers::compare(engines, rows / 5, seconds).await?,
            Part::Inbox => {
                transactions::with_inbox(engines, seconds).await?;
                consumer::compare(engines, rows / 5).await?;
            }
        }
    }
    Ok(())
}
