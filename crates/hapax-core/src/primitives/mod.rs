//! The primitives: small traits whose laws every store obeys.

pub mod claim_rules;
pub mod claims;
pub mod log;
pub(crate) mod oversight;
pub mod queue;
pub mod records;
pub(crate) mod store;
