//! The primitives: small traits with laws that every store keeps.

pub mod claim_rules;
pub mod claims;
pub mod log;
pub(crate) mod oversight;
pub mod queue;
pub mod records;
pub(crate) mod store;
