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
#[cfg(target_env = "gnu")]
mod power_cut;
mod processes;
mod sqlx_transactions;
mod transactions;
