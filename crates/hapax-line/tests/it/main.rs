//! One binary for all integration tests of this crate, because linking takes most of the time.

mod client;
mod client_logs;
mod gateway;
mod simulator_api;
mod upstream;
