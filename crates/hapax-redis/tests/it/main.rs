//! One binary for all integration tests of this crate: linking is what takes time.

mod common;
mod conformance;
mod faults;
mod foreign;
mod formats;
mod log;
mod python;
mod queue;
mod record_reads;
mod replicas;
mod tls;
mod topologies;
