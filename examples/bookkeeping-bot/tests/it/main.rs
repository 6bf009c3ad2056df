//! One binary for all integration tests of this crate, to link only once.

mod last_transaction;
mod ledger;
mod line;
