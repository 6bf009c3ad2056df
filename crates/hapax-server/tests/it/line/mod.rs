//! `hapax line`, the real binary between LINE's side on loopback and a bot on loopback.

mod batches;
pub(crate) mod bot;
mod channels;
mod checker;
mod checklist;
mod crashes;
mod gateway;
mod harness;
mod leaks;
mod monitor;
mod order;
mod outages;
mod privacy;
mod redelivery;
mod retries;
mod rules;
mod taps;
mod webhooks;
