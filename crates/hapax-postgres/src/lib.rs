//! hapax on PostgreSQL.
//!
//! - [`PostgresStore`] is the store, for a server or for many nodes on one database.
//! - [`HapaxTransaction`] puts hapax into transactions of your own, of `tokio-postgres` or with the
//!   feature `sqlx` of `sqlx` (`tx.hapax()`): an effect there happens **exactly once**, because its
//!   claim is in the same transaction.
//! - [`migrate`](migrate()) makes hapax's tables in your own database.
//!
//! # How it works
//!
//! Claims and records of all nodes are rows of two tables, `hapax_claims` and `hapax_records`, with
//! one sequence for fences and versions. Times are the server's own. Every write of a key is made
//! under its transaction-level advisory lock, which is only ever *tried*: a claim that does not get
//! it is answered busy, everything else is retried. So no statement queues behind an open
//! transaction, and deadlocks cannot happen. Claims of settled, busy and mismatching keys write
//! nothing.
//!
//! An append to a log locks the row of its partition and takes the next positions there, so that they
//! become visible in order and a reader of the tail never skips one that commits late. Concurrent
//! appends are sent to the server many in one call, and lock their partitions in one order.
//!
//! All queues share one table, `hapax_outbox`. Rows are found by their state, not by their number, so
//! that a row which commits late is found as well. Leases are in a table of their own, one row for a
//! whole batch: leasing and acknowledging write nothing to an item but its end.
//!
//! Behind a transaction pooler use [`PostgresConfig::transaction_pooler`].

mod batch;
mod claims;
mod config;
mod connect;
mod error;
mod examine;
mod log;
mod migrate;
mod oversight;
mod queue;
mod records;
mod row;
mod store;
mod sweep;
mod tx;
mod wake;

pub use config::PostgresConfig;
pub use migrate::{SCHEMA_VERSION, migrate, migration_sql};
#[cfg(feature = "sqlx")]
pub use sqlx;
pub use store::PostgresStore;
pub use tokio_postgres;
pub use tx::{EffectFuture, HapaxTransaction, PostgresTransaction};
