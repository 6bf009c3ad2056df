//! One binary for all integration tests of this crate: linking is what takes time.

mod common;
mod conformance;
mod crash;
mod crash_streams;
mod failures;
mod files;
mod formats;
mod full_disk;
mod logs;
mod opening;
mod outbox;
mod processes;
mod transactions;
