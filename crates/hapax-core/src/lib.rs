//! Primitives, laws and features of hapax.
//!
//! ```text
//!   edges  →  features  →  primitives  ←  stores
//! ```
//!
//! This crate is the middle: it holds the **primitives** whose laws every store keeps, and the
//! **features** that are built on nothing but those laws. It does no I/O. The one store in it,
//! [`memory`], is for tests and demos, and is the worked example of writing a store.
//!
//! | primitive | what it is | features on it |
//! |---|---|---|
//! | [`Claims`] | the right to do one thing | [`lock`], [`command`], [`inbox`] |
//! | [`Records`] | values with versions | [`document`] |
//! | [`Log`] | ordered, deduplicated events of one job | [`bus`] |
//! | [`Queue`] | durable work with leases, retries, dead letters | the outbox of each store, and `hapax-relay` |
//! | [`Oversight`] | what an operator sees | |
//!
//! Most people depend on the facade crate `hapax` instead.

mod canonical;
mod claim_retry;
mod clock;
mod error;
mod features;
mod key;
pub mod memory;
pub mod metric_names;
mod once;
mod primitives;
mod token;
pub mod trace;
mod wake;

pub use canonical::canonical_json;
pub use clock::{Clock, ManualClock, SystemClock, Timestamp, millis};
pub use error::StoreError;
pub use features::{bus, command, document, inbox, lock, worker};
pub use key::{InvalidKey, Key, KeyKind, MAX_NAME, MAX_TENANT, Operation, Tenant};
pub use once::{Once, OnceError, RunContext};
pub use primitives::claims::{
    ClaimRequest, ClaimView, Claimed, Claims, Fence, Fingerprint, GiveBack, OnUnknown, Step, Ticket,
};
pub use primitives::log::Log;
pub use primitives::oversight::{ClaimPage, ClaimQuery, ClaimStatus, ClaimSummary, Oversight};
pub use primitives::queue::Queue;
pub use primitives::records::{Deleted, Expect, Put, Record, Records, Version};
pub use primitives::store::{Finding, Promise, Severity, Store, with_timeout};
pub use primitives::{claim_rules, claims, log, queue, records};
pub use token::Token;
pub use wake::{WakeRegistry, Watch};
