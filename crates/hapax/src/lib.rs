//! **hapax makes duplicates harmless.** A user double-taps a button, a client retries a payment, a
//! webhook is delivered again, a worker dies between two writes, a browser reconnects: with hapax
//! the effect happens once, and every caller gets the same answer.
//!
//! ```
//! use hapax::{Operation, StoreConfig, command::Commands};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("hapax-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?; let url = format!("sqlite:{}/hapax.db", folder.display());
//! # let url = url.as_str();
//! // let url = "sqlite:hapax.db";
//! let commands = Commands::new(hapax::open(url, &StoreConfig::default())?);
//! let request = serde_json::json!({"item": "tea", "cups": 2});
//!
//! // Runs once for this key. A second call, now or tomorrow, gets the first answer.
//! let create_order = || async { Ok::<_, std::io::Error>("order 17".to_owned()) };
//! let order = commands.once(Operation("CreateOrder"), "key-1", &request, create_order).await?;
//! assert_eq!(order.value, "order 17");
//! # std::fs::remove_dir_all(folder)?;
//! # Ok(()) }
//! ```
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
//! | a database transaction of your own | the claim inside it | `HapaxTransaction` of `hapax::sqlite` and `hapax::postgres` (`tx.hapax()` in transactions of rusqlite, tokio-postgres and, with the feature `sqlx`, of sqlx) |
//! | a store of your own | the same laws | [`Claims`], [`Records`], [`Log`], [`Queue`], [`memory`] as the example, `hapax-conformance` |
//!
//! The file `docs/promises.md` in the repository lists what each store promises, and what it does
//! not.

mod open;
mod sweeper;

/// Compiles the Rust example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

pub use open::{StoreConfig, open};
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
    MAX_NAME, MAX_TENANT, OnUnknown, Once, OnceError, Operation, Oversight, Promise, Put, Queue,
    Record, Records, RunContext, Severity, Step, Store, StoreError, StoreResult, Swept, Tenant,
    Ticket, Token, Version, Watch,
};
pub use hapax_core::{claims, log, memory, metric_names, records, trace, worker};

// Clocks and durations, and the timeout that edges put around store calls.
pub use hapax_core::{
    Clock, ManualClock, RuntimeClock, SystemClock, Timestamp, millis, with_timeout,
};

#[cfg(feature = "postgres")]
pub use hapax_postgres as postgres;
#[cfg(feature = "redis")]
pub use hapax_redis as redis;
#[cfg(feature = "sqlite")]
pub use hapax_sqlite as sqlite;
