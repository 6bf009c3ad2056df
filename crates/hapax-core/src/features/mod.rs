//! The features, built on nothing but the laws of the primitives.

pub mod activity;
#[cfg(feature = "bus")]
pub mod bus;
#[cfg(feature = "command")]
pub mod command;
#[cfg(feature = "document")]
pub mod document;
#[cfg(any(feature = "command", feature = "inbox"))]
mod effect_claims;
#[cfg(feature = "inbox")]
pub mod inbox;
#[cfg(feature = "lock")]
pub mod lock;
pub mod worker;
