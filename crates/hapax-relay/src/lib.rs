//! Drains a hapax outbox into a broker, a webhook or hapax's own bus, and receives on the other side.
//!
//! ```text
//!   your transaction          Relay                         Consumer
//!   ────────────────          ─────                         ────────
//!   INSERT the order          lease rows, by key            receive, deduplicate with the inbox,
//!   INSERT the message  ──►   send, acknowledged      ──►   run your handler,
//!   COMMIT                    ack rows                      acknowledge after the commit
//! ```
//!
//! The id is made with the row and never changes, so a message that is delivered twice is recognised
//! as one. [`Relay`] needs nothing but the laws of [`Queue`](hapax_core::Queue) and a [`Sink`].
//!
//! | sink | cargo feature | the id travels as | acknowledged by |
//! |---|---|---|---|
//! | NATS JetStream | `nats` | `Nats-Msg-Id` | the stream |
//! | RabbitMQ | `amqp` | `message_id` | publisher confirms; unroutable is a failure |
//! | Redis Streams | `redis` | the field `id` | the reply to `XADD` |
//! | HTTP(S) webhooks | `webhook` | `Idempotency-Key`, `Webhook-Id` | a status of 2xx |
//! | hapax's own bus | | (job, stage, seq) of the event | the store |
//! | lines of JSON | | the member `id` | the write |

mod batch_size;
#[cfg(any(feature = "amqp", feature = "nats", feature = "redis"))]
mod broker_ca;
mod config;
pub mod consumer;
mod message;
mod ordered_send;
#[cfg(feature = "redis")]
mod redis_connection;
mod relay;
#[cfg(any(feature = "amqp", feature = "redis"))]
mod shared_connection;
mod sink;
mod sink_gate;
pub mod sinks;

pub use config::{AfterDead, RelayConfig};
pub use hapax_core::worker::{Backoff, TargetHealth};
pub use message::{CloudEvents, KEY_HEADER, MessageHeaders, OutboundMessage, TOPIC_HEADER};
pub use relay::Relay;
pub use sink::{DeliveryError, RetryHint, Sink};
