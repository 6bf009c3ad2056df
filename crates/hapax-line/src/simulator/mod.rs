//! LINE's side on loopback: its API, and a sender of signed webhooks.

mod api;
pub mod events;
mod sender;

pub use api::{Api, Endpoint, Fault, Said};
pub use sender::{Delivered, SendFailed, Sender};
