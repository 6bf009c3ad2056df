//! The cost of the outbox, the relay and the inbox.

mod brokers;
mod consumer;
mod drain;
mod rows;
mod transactions;

use clap::ValueEnum;

use crate::RunArgs;
pub(crate) use rows::Countdown;

/// The arguments of `hapax-bench relay`.
#[derive(clap::Args)]
pub(crate) struct RelayBenchArgs {
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    part: Vec<RelayPart>,
    /// How many rows are drained into a sink that does nothing; a fifth of them into each broker.
    #[arg(long, default_value_t = 100_000)]
    rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RelayPart {
    /// Business transactions with an outbox row, beside those without.
    Enqueue,
    /// A relay whose sink does nothing, on each store.
    Drain,
    /// A relay into each broker, beside the broker's own client.
    Brokers,
    /// Business transactions with the inbox, beside those without; and consumers of NATS.
    Inbox,
}

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(args: &RelayBenchArgs, run: &RunArgs) -> anyhow::Result<()> {
    let rows = args.rows.max(100);
    for part in RelayPart::value_variants() {
        if !args.part.is_empty() && !args.part.contains(part) {
            continue;
        }
        match part {
            RelayPart::Enqueue => transactions::with_outbox(run).await?,
            RelayPart::Drain => drain::compare(run, rows).await?,
            RelayPart::Brokers => brokers::compare(run, rows / 5).await?,
            RelayPart::Inbox => {
                transactions::with_inbox(run).await?;
                consumer::compare(run, rows / 5).await?;
            }
        }
    }
    Ok(())
}
