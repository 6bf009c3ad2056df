//! One binary for all integration tests of this crate: linking is what takes time.

mod client;
mod client_logs;
mod gateway;
mod simulator_api;
mod upstream;
