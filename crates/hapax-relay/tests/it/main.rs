//! Relay, sinks and consumers, on real brokers.

mod amqp;
mod bus;
mod consumers;
mod failures;
mod leases;
mod lines;
mod nats;
mod order;
mod pause;
mod redis;
mod stores;
mod stranded;
mod support;
mod tls;
mod webhook;
