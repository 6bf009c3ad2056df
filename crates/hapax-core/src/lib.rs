//! Primitives, laws and features of hapax.
//!
//! ```text
//!   edges  →  features  →  primitives  ←  stores
//! ```
//!
//! This crate is the middle: it holds the **primitives** ([`Claims`], [`Records`]) whose laws every
//! store keeps, and the **features** ([`lock`], [`command`], [`record`]) that are built on nothing
//! but those laws. It does no I/O. The one store in it, [`memory`], is for tests and demos, and is
//! the worked example of writing a store.
//!
//! Most people depend on the facade crate `hapax` instead.

mod canonical;
pub mod claims;
mod clock;
pub mod command;
mod error;
mod key;
pub mod lock;
pub mod machine;
pub mod memory;
pub mod meters;
mod oversight;
mod pursue;
pub mod record;
pub mod records;
mod store;
mod token;
mod wake;

pub use canonical::canonical_json;
pub use claims::{
    Ask, Claimed, Claims, Fence, Fingerprint, GiveBack, OnUnknown, Step, Ticket, View,
};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp, millis};
pub use error::StoreError;
pub use key::{InvalidKey, Key, Kind, MAX_NAME, MAX_TENANT, Tenant};
pub use oversight::{List, Listed, Oversight, Page, Standing};
pub use records::{Deleted, Expect, Put, Record, Records, Version};
pub use store::{Finding, Promise, Severity, Store, limited};
pub use token::Token;
pub use wake::{Hub, Watch};
