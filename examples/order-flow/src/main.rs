//! Each order becomes exactly one invoice, whichever service is killed.
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

/// Turns each order into exactly one invoice. Without a command: starts all services on servers of
/// its own, sends orders while killing each service in turn, and compares the counts.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    part: Option<Part>,
    /// Number of orders to send.
    #[arg(long, default_value_t = 1000)]
    orders: usize,
}

#[derive(Subcommand)]
enum Part {
    /// The orders service: POST /orders with an Idempotency-Key.
    Orders {
        /// Address to listen on.
        #[arg(long)]
        listen: String,
        /// URL of the shop's database.
        #[arg(long)]
        database: String,
    },
    /// The relay from the shop's outbox to NATS.
    Relay {
        /// URL of the shop's database.
        #[arg(long)]
        database: String,
        /// URL of the NATS server.
        #[arg(long)]
        nats: String,
    },
    /// The billing service: one invoice for each order.
    Billing {
        /// URL of the NATS server.
        #[arg(long)]
        nats: String,
        /// URL of the billing database.
        #[arg(long)]
        database: String,
    },
}

/// The topic of the messages about new orders.
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
