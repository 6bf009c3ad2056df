//! One binary for all integration tests of this crate: linking is what takes time.

mod common;
mod conformance;
mod crash;
mod crash_streams;
mod failures;
mod formats;
mod logs;
mod opening;
mod outbox;
mod processes;
mod transactions;
