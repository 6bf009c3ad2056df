//! One binary for all integration tests of this crate: linking is what takes time.

mod answers;
mod common;
mod end_to_end;
mod endings;
mod failures;
mod identity;
mod json_cost;
mod keyless;
mod properties;
mod rivals;
mod stores;
mod streaming;
mod traces;
mod transaction;
mod waiting;
