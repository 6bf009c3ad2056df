//! The primitives of hapax, their laws, and the features built on them.
//!
//! ```text
//!   edges  →  features  →  primitives  ←  stores
//! ```
//!
//! This crate holds the **primitives**, whose laws every store obeys, and the **features**, which
//! rely only on those laws. It does no I/O. Its only store, [`memory`], is for tests and demos, and
//! is the worked example of writing a store.
//!
//! | primitive | what it is | features on it |
//! |---|---|---|
//! | [`Claims`] | the right to do one thing | [`lock`], [`command`], [`inbox`] |
//! | [`Records`] | values with versions | [`document`] |
//! | [`Log`] | ordered, deduplicated events of one job | [`bus`] |
//! | [`Queue`] | durable work with leases, retries, dead letters | the outbox of each store, and `hapax-relay` |
//! | [`Oversight`] | lists of claims, for operators | |
//!
//! The result type of a method is named by the participle: `claim` → [`Claimed`], `append` →
//! [`Appended`](log::Appended), `enqueue` → [`Enqueued`](queue::Enqueued).
//!
//! Each feature is a cargo feature of the same name; all are enabled by default. Most users depend
//! on the facade crate `hapax` instead.

mod canonical;
#[cfg(any(feature = "lock", feature = "command", feature = "bus", feature = "inbox"))]
#[allow(dead_code, reason = "each feature uses some of it")]
mod claim_retry;
mod clock;
mod config;
mod error;
mod features;
mod hex;
mod key;
#[cfg(feature = "command")]
mod lease_keeper;
pub mod memory;
pub mod metric_names;
mod once;
mod primitives;
mod token;
pub mod trace;
mod wake;
pub mod wrapped_store;

pub use canonical::canonical_json;
pub use clock::{
    Clock, ManualClock, MonotonicClock, RuntimeClock, SteadyClock, SystemClock, Timestamp,
    deadline_after, millis,
};
pub use error::{StoreError, StoreResult};
pub use features::activity;
#[cfg(feature = "bus")]
pub use features::bus;
#[cfg(feature = "command")]
pub use features::command;
#[cfg(feature = "document")]
pub use features::document;
#[cfg(feature = "inbox")]
pub use features::inbox;
#[cfg(feature = "lock")]
pub use features::lock;
pub use features::worker;
pub use key::{InvalidKey, Key, KeyKind, MAX_NAME, MAX_TENANT, Operation, Tenant};
pub use once::{Once, OnceError, RunContext};
pub use primitives::claims::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Fence, Fingerprint, GiveBack, OnUnknown,
    Step, Ticket,
};
pub use primitives::log::Log;
pub use primitives::oversight::{
    ClaimPage, ClaimQuery, ClaimStatus, ClaimSummary, OpenClaims, Oversight, TenantPage,
};
pub use primitives::queue::Queue;
pub use primitives::records::{Deleted, Expect, Put, Record, Records, Version};
pub use primitives::store::{Finding, OpenMode, Promise, Severity, Store, Swept, with_timeout};
pub use primitives::{claim_rules, claims, log, queue, records};
pub use token::Token;
pub use wake::{ListenerTask, WakeRegistry, Watch};
