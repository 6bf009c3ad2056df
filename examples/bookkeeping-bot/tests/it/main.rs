//! One binary for all integration tests of this crate: linking is what takes time.

mod last_transaction;
mod ledger;
mod line;
