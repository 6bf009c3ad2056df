//! One binary for all integration tests of this crate: linking is what takes time.

mod cut_off;
mod features;
mod memory;
mod mutants;
