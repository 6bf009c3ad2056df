//! hapax on PostgreSQL, also inside the caller's own transaction.
//!
//! - [`PostgresStore`] is the whole store, for a server or for many nodes on one database.
//! - [`InTransaction`] and [`once_in`] put a claim and its effect into one transaction of your own:
//!   the one place where *exactly once* is true without the other side's help. [`Outbox`] and [`Inbox`]
//!   do so for messages that go out and come in. [`Transactional`] is a transaction of
//!   `tokio-postgres`, or with the feature `sqlx` one of `sqlx`: `tx.hapax()` takes part in it.
//! - [`migrate`](migrate()) makes the tables in your own database.
//!
//! # How it works
//!
//! Claims and records of all nodes meet in two tables, `hapax_claims` and `hapax_records`, and one
//! sequence for fences and versions. Times are the server's own. Every write of a key is made under
//! its transaction-level advisory lock, which is only ever *tried*: what is taken is answered with
//! busy (claims) or tried again (everything else), so no statement ever queues behind somebody's open
//! transaction, and deadlocks cannot happen. Claims of settled, busy and mismatching keys write nothing.
//!
//! An append to a log locks the row of its partition and takes the next positions there, so that they
//! become visible in order and a reader of the tail never passes one that commits late. Concurrent
//! appends go to the server many in one call, and lock their partitions in one order.
//!
//! All queues share one table, `hapax_outbox`. Rows are found by their state, not by their number, so
//! that one which commits late is found as well. Who holds what stands in a table of its own, one row
//! for a whole batch: handing out and acknowledging write nothing to an item but its end.
//!
//! Behind a transaction pooler use [`Config::pooled`].

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

pub use config::Config;
pub use migrate::migrate;
pub use store::PostgresStore;
pub use tx::inbox::{Inbox, MessageStatus};
pub use tx::outbox::Outbox;
pub use tx::session::Transactional;
pub use tx::{InTransaction, Once, once_in};
