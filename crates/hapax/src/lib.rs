//! **hapax makes duplicates harmless.** A user double-taps a button, a client retries a payment, a
//! webhook is delivered again, a worker dies between two writes, a browser reconnects: with hapax
//! the effect happens once, and every caller gets the same answer.
//!
//! ```toml
//! [dependencies]
//! hapax = "0.1"    # more stores: features = ["redis", "postgres"]
//! tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
//! ```
//!
//! ```no_run
//! use hapax::{Operation, StoreConfig, command::Commands};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let commands = Commands::new(hapax::open("sqlite:hapax.db", &StoreConfig::default())?);
//!
//!     // Runs once for this key. A second call, now or tomorrow, gets the first answer.
//!     let create_order = || async { Ok::<_, std::io::Error>("order 17".to_owned()) };
//!     let order = commands.once(Operation("CreateOrder"), "key-1", "two cups", create_order).await?;
//!     println!("{} (replayed: {})", order.value, order.replayed);
//!     Ok(())
//! }
//! ```
//!
//! | feature | brings |
//! |---|---|
//! | `lock`, `command`, `document`, `bus`, `inbox` (on by default) | the modules of these names |
//! | `sqlite` (on by default) | the embedded file, and `tx.hapax()` in transactions of rusqlite |
//! | `redis` | a single Redis or Valkey, Sentinel, Cluster |
//! | `postgres` | PostgreSQL, and `tx.hapax()` in transactions of tokio-postgres |
//! | `sqlx-postgres` (also `sqlx`) | with `postgres`: `tx.hapax()` in transactions of sqlx 0.9 |
//! | `sqlx-sqlite` | with `sqlite`: `tx.hapax()` in transactions of sqlx 0.9, or of 0.8 |
//!
//! | you have | you want | use |
//! |---|---|---|
//! | a button that is tapped twice | one at a time | [`lock::Locks`] |
//! | a request that is retried | one effect, one answer | [`command::Commands`] |
//! | a value that two people edit | no lost update | [`document::Documents`] |
//! | a job that somebody watches | every event once, in order, across reconnects | [`bus::Bus::publish`], [`bus::Bus::follow`] |
//! | events that have effects | each in order, by as many processes as you like | [`bus::Bus::consume`] |
//! | a commit that others must hear of | a message if and only if it commits | `tx.hapax().enqueue(…)` in your transaction, and `hapax-relay` to send it |
//! | messages that are delivered twice | one effect | [`inbox::Inbox`]; in your transaction `tx.hapax().receive(…)` |
//! | work for later | leases, retries, dead letters | [`Queue`] |
//! | a database transaction of your own | the claim inside it | `HapaxTransaction` of `hapax::sqlite` and `hapax::postgres` (`tx.hapax()` in transactions of rusqlite, tokio-postgres and, with the features `sqlx-sqlite` and `sqlx-postgres`, of sqlx) |
//! | a store of your own | the same laws | [`Claims`], [`Records`], [`Log`], [`Queue`], [`memory`] as the example, `hapax-conformance` |
//!
//! The file `docs/promises.md` in the repository lists what each store promises, and what it does
//! not.

mod open;
mod report;
mod sweeper;

/// Compiles the Rust example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

pub use open::{StoreConfig, migration_sql, open};
pub use report::report_activity;
pub use sweeper::{sweep, sweep_forever};

#[cfg(feature = "bus")]
#[doc = include_str!("../docs/events.md")]
#[doc(inline)]
pub use hapax_core::bus;
#[cfg(any(feature = "command", feature = "sqlite", feature = "postgres"))]
#[doc = include_str!("../docs/commands.md")]
#[doc(inline)]
pub use hapax_core::command;
#[cfg(feature = "document")]
#[doc = include_str!("../docs/records.md")]
#[doc(inline)]
pub use hapax_core::document;
#[cfg(any(feature = "inbox", feature = "sqlite", feature = "postgres"))]
#[doc = include_str!("../docs/inbox.md")]
#[doc(inline)]
pub use hapax_core::inbox;
#[cfg(feature = "lock")]
#[doc = include_str!("../docs/locks.md")]
#[doc(inline)]
pub use hapax_core::lock;

// The primitives, the `Store` trait, and the types that their methods take and return.
#[doc = include_str!("../docs/outbox.md")]
#[doc(inline)]
pub use hapax_core::queue;
pub use hapax_core::{
    ClaimPage, ClaimQuery, ClaimRequest, ClaimStatus, ClaimStep, ClaimSummary, ClaimView, Claimed,
    Claims, Deleted, Expect, Fence, Finding, Fingerprint, GiveBack, InvalidKey, Key, KeyKind, Log,
    MAX_NAME, MAX_TENANT, OnUnknown, Once, OnceError, OpenClaims, OpenMode, Operation, Oversight,
    Promise, Put, Queue, Record, Records, RunContext, Severity, Step, Store, StoreError,
    StoreResult, Swept, Tenant, TenantPage, Ticket, Token, Version, Watch,
};
pub use hapax_core::{
    activity, claims, log, memory, metric_names, records, trace, worker, wrapped_store,
};

// Clocks and durations, and the timeout that edges put around store calls.
pub use hapax_core::{
    Clock, ManualClock, RuntimeClock, SteadyClock, SystemClock, Timestamp, millis, with_timeout,
};

#[cfg(feature = "postgres")]
pub use hapax_postgres as postgres;
#[cfg(feature = "redis")]
pub use hapax_redis as redis;
#[cfg(feature = "sqlite")]
pub use hapax_sqlite as sqlite;
