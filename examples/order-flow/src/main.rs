//! Each order becomes exactly one invoice, whichever service is killed.
//!
//! ```text
//! client ──► orders ──► PostgreSQL ──► relay ──► NATS ──► billing ──► PostgreSQL
//!     Idempotency-Key   order + outbox    message id    inbox + invoice
//! ```

mod billing;
mod orders;
mod relay;
mod scenario;
mod service_process;

use std::time::Duration;

use clap::{Parser, Subcommand};
use deadpool_postgres::Pool;
use example_common::database::postgres_pool;

/// Turns each order into exactly one invoice. Without a command: starts all services on servers of
/// its own, sends orders while killing each service in turn, and compares the counts.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    service: Option<Service>,
    /// Number of orders to send.
    #[arg(long, default_value_t = 1000)]
    orders: usize,
}

#[derive(Subcommand)]
enum Service {
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
    match args.service {
        Some(Service::Orders { listen, database }) => orders::serve(&listen, &database).await,
        Some(Service::Relay { database, nats }) => relay::run(&database, &nats).await,
        Some(Service::Billing { nats, database }) => billing::run(&nats, &database).await,
        None => scenario::run(args.orders).await,
    }
}

/// Opens a pool on this database, and creates hapax's tables and the service's own `table`.
async fn open_database(url: &str, table: &str) -> anyhow::Result<Pool> {
    let pool = postgres_pool(url, Duration::from_secs(2))?;
    let mut client = pool.get().await?;
    hapax::postgres::migrate(&mut client).await?;
    client.batch_execute(table).await?;
    Ok(pool)
}
