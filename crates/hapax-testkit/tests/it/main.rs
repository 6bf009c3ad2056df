//! One binary for all integration tests of this crate: linking is what takes time.

mod brokers;
mod browser;
mod cleanup;
mod client;
mod postgres;
mod redis;
mod redis_failover;
mod tcp_proxy;
