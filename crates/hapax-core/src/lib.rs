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
//! | [`Records`] | values with versions | [`record`] |
//! | [`Log`] | ordered, deduplicated events of one job | [`bus`] |
//! | [`Queue`] | durable work with leases, retries, dead letters | the outbox of each store, and `hapax-relay` |
//! | [`Oversight`] | what an operator sees | |
//!
//! Most people depend on the facade crate `hapax` instead.

pub mod bus;
mod canonical;
pub mod claims;
mod clock;
pub mod command;
mod error;
pub mod inbox;
mod key;
pub mod lock;
pub mod log;
pub mod machine;
pub mod memory;
pub mod meters;
mod oversight;
mod pursue;
pub mod queue;
pub mod record;
pub mod records;
mod store;
mod token;
pub mod trace;
mod wake;

pub use canonical::canonical_json;
pub use claims::{
    Ask, Claimed, Claims, Fence, Fingerprint, GiveBack, OnUnknown, Step, Ticket, View,
};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp, millis};
pub use error::StoreError;
pub use key::{InvalidKey, Key, Kind, MAX_NAME, MAX_TENANT, Tenant};
pub use log::Log;
pub use oversight::{List, Listed, Oversight, Page, Standing};
pub use queue::Queue;
pub use records::{Deleted, Expect, Put, Record, Records, Version};
pub use store::{Finding, Promise, Severity, Store, limited};
pub use token::Token;
pub use wake::{Hub, Watch};
