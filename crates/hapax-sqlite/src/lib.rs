//! hapax on an embedded SQLite file: one machine, no set-up.
//!
//! [`SqliteStore`] is the whole store: WAL, every commit on the disk before it is answered, one
//! writer thread that commits many calls at once, readers beside it. Other processes may have the
//! same file open at any time.
//!
//! [`tx`] is for those who have a SQLite database of their own: a claim there is part of their
//! own transaction, and its effect happens **exactly once** because it is in the same one.
//!
//! ```text
//!   claim, get, look ──► readers ──► answer               keeper: copies the log
//!            │ (to be written)                                      ▲
//!            ▼                                                      │
//!   settle, append, … ─► queue ──► writer: BEGIN … COMMIT ──► answers, wake-ups
//! ```
//!
//! The stored format is described column by column in `src/schema/v1.sql` and, for what the
//! second version added (logs and queues), in `src/schema/v2.sql`.

mod checkpoint;
mod claims;
mod config;
mod connect;
mod error;
mod examine;
mod failpoint;
mod log;
mod migrate;
mod oversight;
mod queue;
mod queued_call;
mod reader;
mod records;
mod row;
mod store;
mod sweep;
pub mod tx;
mod writer;

pub use config::Config;
pub use migrate::migrate;
pub use rusqlite;
pub use store::SqliteStore;
