//! One binary for all integration tests of this crate: linking is what takes time.

mod brokers;
mod browser;
mod client;
mod janitor;
mod postgres;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod slow_wire;
mod wire;
