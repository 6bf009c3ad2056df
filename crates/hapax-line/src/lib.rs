//! LINE bots that are safe against double taps and redelivery.
//!
//! ```text
//!   LINE ──► Gateway::receive ──► queue `line` ──► Gateway::run ──► Handler (your bot)
//!            signature, store,      durable          lock per user,      Turn: reply, push
//!            200 within 2 s                          retry, dead letters
//! ```
//!
//! * [`Secrets`] checks and makes signatures, [`Webhook`] and [`Event`] read what LINE sends.
//! * [`Gateway`] stores events by bot and `webhookEventId`, answers, and hands each one to a
//!   [`Handler`] under the lock that the [`Rules`] choose.
//! * [`Turn`] and [`LineClient`] answer: a reply token is used once, a push has a retry key.
//!
//! Most people run `hapax line` in front of a bot in any language instead; see the guide.

mod client;
mod event;
mod gateway;
mod handler;
mod outgoing;
mod rules;
mod settings;
mod signature;
#[cfg(feature = "simulator")]
pub mod simulator;
mod turn;
mod upstream;

pub use client::{InvalidBase, LINE_API_BASE, LineClient, SendError, Sent};
pub use event::{Event, Kind, MalformedWebhook, Webhook};
pub use gateway::{Answer, Gateway, WebhookService};
pub use handler::{Failed, Handler};
pub use outgoing::{Action, MAX_TEXT, Message};
pub use rules::{BUSY_TEXT, Guarding, InvalidRules, Rules};
pub use settings::Settings;
pub use signature::{InvalidSecrets, SIGNATURE, Secrets};
pub use turn::Turn;
pub use upstream::{InvalidUpstream, Upstream};
