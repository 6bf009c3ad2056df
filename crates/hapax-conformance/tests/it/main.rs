//! One binary for all integration tests of this crate: linking is what takes time.

mod features;
mod memory;
mod mutants;
