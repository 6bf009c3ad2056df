//! LINE simulated on loopback: its API, and a sender of signed webhooks.

mod api;
pub mod events;
mod sender;

pub use api::{AcceptedCall, ApiEndpoint, ApiFault, SimulatedApi};
pub use sender::{WebhookResponse, WebhookSendError, WebhookSender};
