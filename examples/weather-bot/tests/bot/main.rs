//! The real program between a simulated LINE and a simulated weather service, on real servers.

mod conversation;
mod demo;
mod double_tap;
mod outages;
mod redelivery;
mod store_away;
mod world;
