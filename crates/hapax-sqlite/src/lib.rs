//! hapax on an embedded SQLite file: one file, no set-up.
//!
//! - [`SqliteStore`] is the store: WAL, every commit on the disk before it is answered, one writer
//!   thread that commits many calls at once, reader threads beside it. Other processes may have the
//!   same file open at any time.
//! - [`HapaxTransaction`] puts hapax into transactions of your own SQLite database (`tx.hapax()`): an
//!   effect there happens **exactly once**, because its claim is in the same transaction. With the feature
//!   `sqlx` (sqlx 0.9, or 0.8) transactions of `sqlx` can do the same (`HapaxSqlxTransaction`).
//! - [`migrate`](migrate()) makes hapax's tables in your own database.
//!
//! ```text
//!   lists, counts ─────► operator's reader
//!   claim, get, look ──► readers ──► answer            checkpoint: copies the WAL
//!            │ (needs a write)                         ▲ (the WAL has grown)
//!            ▼                                         │
//!   settle, append, … ─► queue ──► writer: BEGIN … COMMIT ──► answers, wake-ups
//! ```
//!
//! Leases and retentions are measured by the machine's time since boot, which all its processes share and
//! nobody can set; the wall clock counts only while the machine is off.
//!
//! The stored format is described column by column in `src/schema/v1.sql`, for logs and queues in
//! `src/schema/v2.sql`, and for the clock in `src/schema/v3.sql`.

mod changes;
mod checkpoint;
mod claims;
mod config;
mod connect;
mod error;
mod examine;
mod failpoint;
mod files;
mod log;
mod migrate;
mod oversight;
mod queue;
mod queued_call;
mod reader;
mod records;
mod reserve;
mod session;
mod store;
mod store_clock;
mod sweep;
mod tx;
mod writer;

pub use config::SqliteConfig;
pub use migrate::{SCHEMA_VERSION, migrate, migration_sql};
pub use rusqlite;
#[cfg(feature = "sqlx")]
pub use sqlx;
pub use store::SqliteStore;
#[cfg(feature = "sqlx")]
pub use tx::sqlx_adapter::{HapaxSqlxTransaction, SqlxEffect, SqlxTransaction};
pub use tx::{HapaxTransaction, SqliteTransaction};
