//! LINE bots that are safe against double taps and redelivery.
//!
//! ```text
//!   LINE ──► Gateway::receive ──► its queue ──► Gateway::run ──► LineEventHandler (your bot)
//!            signature, store,      durable          lock per user,      EventContext: reply, push
//!            200 within 2 s                          retry, dead letters
//! ```
//!
//! * [`ChannelSecrets`] checks and makes signatures, [`WebhookBody`] and [`LineEvent`] parse what LINE
//!   sends.
//! * [`Gateway`] stores events by bot and `webhookEventId`, answers, and passes each one to an
//!   [`LineEventHandler`] under the lock that the [`LockRules`] choose.
//! * [`EventContext`] and [`LineClient`] answer: a reply token is used once, a push has a retry key.
//!
//! Most people run `hapax line` in front of a bot in any language instead; see the guide.

/// Compiles the Rust example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/line.md")]
mod guide {}

mod client;
mod config;
mod event;
mod event_context;
mod gateway;
mod handler;
mod message;
mod rules;
mod signature;
#[cfg(feature = "simulator")]
pub mod simulator;
mod upstream;

pub use client::{InvalidApiBase, LINE_API_BASE, LineClient, SendError, SendStatus};
pub use config::GatewayConfig;
pub use event::{EventKind, LineEvent, MalformedWebhook, WebhookBody};
pub use event_context::EventContext;
pub use gateway::{Gateway, WebhookService, WebhookStatus};
pub use handler::{EventHandlerError, LineEventHandler};
pub use hapax_core::worker::Backoff;
pub use message::{LineMessage, MAX_TEXT, QuickReplyAction};
pub use rules::{BUSY_TEXT, InvalidLockRules, LockRule, LockRules};
pub use signature::{ChannelSecrets, InvalidChannelSecrets, SIGNATURE_HEADER};
pub use upstream::{InvalidUpstreamUrl, UpstreamHandler};
