//! The sink that `--to` names.

use std::sync::Arc;

use anyhow::bail;
use hapax::Store;
use hapax::bus::{Bus, BusConfig, ClosingEvent};
use hapax_relay::Sink;
use hapax_relay::sinks::{
    BusSink, JsonLinesSink, NatsSink, RabbitMqSink, RedisStreamSink, WebhookConfig, WebhookSink,
};

use crate::settings::{RelaySettings, SecretUrl};

pub(super) const EXPECTED: &str = "nats://…, tls://… (NATS), amqp://…, amqps://…, redis://…, \
    rediss://…, http://…, https://…, bus or stdout";

/// The sink that a target names.
pub(super) fn open(
    to: &SecretUrl,
    settings: &RelaySettings,
    bus: Arc<dyn Store>,
) -> anyhow::Result<Arc<dyn Sink>> {
    let url = to.secret();
    Ok(match url.split_once("://").map_or(url, |(scheme, _)| scheme) {
        "nats" | "tls" => Arc::new(NatsSink::new(url)?),
        "amqp" | "amqps" => Arc::new(RabbitMqSink::new(url)?),
        "redis" | "rediss" => Arc::new(RedisStreamSink::new(url)?),
        "http" | "https" => {
            let mut webhook = WebhookConfig::new().allow_private(settings.allow_private);
            if let Some(secret) = &settings.webhook_secret {
                webhook = webhook.secret(&secret.0);
            }
            Arc::new(WebhookSink::new(url, &webhook)?)
        }
        "bus" if url == "bus" => {
            let config = BusConfig::default().closing_event(ClosingEvent::new("done", 51));
            Arc::new(BusSink::new(Bus::with_config(bus, config)))
        }
        "stdout" | "-" => Arc::new(JsonLinesSink::new(tokio::io::stdout())),
        // The text is not repeated: it may hold a password.
        _ => bail!("no such target; {EXPECTED} is expected"),
    })
}

/// Whether standard output belongs to the rows.
pub(super) fn is_stdout(to: &SecretUrl) -> bool {
    matches!(to.secret(), "stdout" | "-")
}
