//! An order becomes one invoice, whichever part of the way is killed.
//!
//! ```text
//! client ──► orders ──► PostgreSQL ──► relay ──► NATS ──► billing ──► PostgreSQL
//!     Idempotency-Key   order + outbox    message id    inbox + invoice
//! ```

mod billing;
mod database;
mod orders;
mod parts;
mod relay;
mod storm;

use clap::{Parser, Subcommand};

/// Orders become invoices, once each. Without a command: starts everything on servers of its own,
/// sends orders while it kills each part in turn, and counts.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    /// How many orders are sent.
    #[arg(long, default_value_t = 1000)]
    orders: usize,
}

#[derive(Subcommand)]
enum Part {
    /// The orders service: POST /orders with an Idempotency-Key.
    Orders {
        /// Where to listen.
        #[arg(long)]
        listen: String,
        /// The shop's database.
        #[arg(long)]
        database: String,
    },
    /// The relay from the shop's outbox to NATS.
    Relay {
        /// The shop's database.
        #[arg(long)]
        database: String,
        /// Where NATS is.
        #[arg(long)]
        nats: String,
    },
    /// The billing service: an invoice for each order.
    Billing {
        /// Where NATS is.
        #[arg(long)]
        nats: String,
        /// The billing database.
        #[arg(long)]
        database: String,
    },
}

/// Where orders are announced.
const TOPIC: &str = "orders.placed";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.part {
        Some(Part::Orders { listen, database }) => orders::serve(&listen, &database).await,
        Some(Part::Relay { database, nats }) => relay::run(&database, &nats).await,
        Some(Part::Billing { nats, database }) => billing::run(&nats, &database).await,
        None => storm::run(args.orders).await,
    }
}
