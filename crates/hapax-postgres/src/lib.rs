//! hapax on PostgreSQL, also inside the caller's own transaction.
//!
//! - [`PostgresStore`] is the whole store, for a server or for many nodes on one database.
//! - [`InTransaction`] and [`once_in`] put a claim and its effect into one transaction of your own:
//!   the one place where *exactly once* is true without the other side's help.
//! - [`migrate`](migrate()) makes the tables in your own database.
//!
//! # How it works
//!
//! All nodes meet in two tables, `hapax_claims` and `hapax_records`, and one sequence for fences
//! and versions. Times are the server's own. Every write of a key is made under its transaction-level
//! advisory lock, which is only ever *tried*: what is taken is answered with busy (claims) or tried
//! again (everything else), so no statement ever queues behind somebody's open transaction, and
//! deadlocks cannot happen. Claims of settled, busy and mismatching keys write nothing.
//!
//! Behind a transaction pooler use [`Config::pooled`].

mod batch;
mod claiming;
mod config;
mod error;
mod examine;
mod link;
mod listing;
mod looking;
mod migrate;
mod patience;
mod recording;
mod row;
mod session;
mod stepping;
mod store;
mod sweep;
mod tls;
mod transaction;
mod url;
mod wake;

pub use config::Config;
pub use migrate::migrate;
pub use store::PostgresStore;
pub use transaction::{InTransaction, Once, once_in};
