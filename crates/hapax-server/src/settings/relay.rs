//! The settings of `hapax relay`.

use std::time::Duration;

use anyhow::ensure;
use hapax::queue::QueueName;
use hapax_relay::AfterDead;
use hapax_relay::sinks::StreamTrim;

use super::declare::{Declaration, settings};
use super::shared::*;
use super::values::*;

const EXAMPLES: &str = "\
Examples:
  hapax relay --from postgres://localhost/shop --to nats://127.0.0.1:4222
      the topic is the subject, the row's id the Nats-Msg-Id; a JetStream stream must cover it
  hapax relay --from sqlite:shop.db --to amqp://guest:guest@127.0.0.1:5672/%2f?exchange=events
      persistent, mandatory, confirmed; the topic is the routing key
  hapax relay --from sqlite:shop.db --to redis://127.0.0.1:6379/0
      the topic is the stream, with the fields id, key, payload, content_type, headers
  HAPAX_WEBHOOK_SECRET=whsec_… hapax relay --from sqlite:shop.db --to https://example.com/hook
      signed; the row's id is the Idempotency-Key
  hapax relay --from sqlite:shop.db --to bus
      the payload is an event as POST /v1/events takes it
  hapax relay --from sqlite:shop.db --to stdout | jq .payload
      shows what would go out (and takes it off the queue)

Rows of one key are delivered in order, different keys at once; any number of relays may share a
queue. A row that fails is tried again, then becomes a dead letter: `hapax queue dead outbox` lists
them. While the target is away the relay waits, and no row's attempts are used up.
Enqueue in your own transaction, in any language:
  INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{\"n\":1}')";

settings! {
    /// The settings of the relay, read and checked.
    RelaySettings, "relay", Some(EXAMPLES);
    from: Option<SecretUrl> = Declaration::new("URL", "",
        "The store whose queue is drained: postgres://…, sqlite:FILE or redis://…");
    to: Option<SecretUrl> = Declaration::new("TARGET", "",
        "nats://…, amqp://…[?exchange=NAME], redis://…, http(s)://…, bus or stdout");
    queue: QueueName = Declaration::new("NAME", "outbox", "The queue that is drained");
    lease: Duration = LEASE;
    max_attempts: usize = MAX_ATTEMPTS;
    backoff: Duration = BACKOFF;
    backoff_max: Duration = BACKOFF_MAX;
    after_dead: AfterDead = Declaration::new("POLICY", "wait",
        "Later rows of a dead letter's key: wait (until it is requeued or discarded) or continue");
    retention: DurationOrZero = RETENTION.default("1h")
        .help("How long a delivered row is kept, to recognise the same id").aliases(&["keep"]);
    batch: usize = Declaration::new("NUMBER", "1000",
        "The most rows of one lease; the actual number follows the load");
    poll: Duration = Declaration::new("TIME", "500ms",
        "How often the queue is read where no notification comes");
    send_timeout: Duration = Declaration::new("TIME", "10s", "The longest that one message may take");
    webhook_secret: Option<SecretText> = Declaration::new("SECRET", "",
        "Signs webhooks (Standard Webhooks): whsec_ and base64, or any text");
    allow_private: bool =
        Declaration::switch("Also call webhooks on private networks and on this machine");
    cloudevents: bool =
        Declaration::switch("Send CloudEvents 1.0 in binary mode: the attributes as headers");
    cloudevents_source: SecretText = Declaration::new("URI", "/hapax",
        "The attribute `source` of CloudEvents");
    bus_store: Option<SecretUrl> = Declaration::new("URL", "",
        "The store that has the jobs, for --to bus; by default that of --from");
    stream_max_entries: Option<usize> = Declaration::new("NUMBER", "",
        "Trim the streams of --to redis://… to so many entries, read or not; unbounded without it");
    stream_max_age: Option<Duration> = Declaration::new("TIME", "",
        "Trim entries of this age from the streams of --to redis://…, read or not");
    admin: Option<ListenAddress> = ADMIN;
    shutdown_timeout: Duration =
        SHUTDOWN_TIMEOUT.help("How long messages on their way may take at shutdown");
    store_timeout: Duration = STORE_TIMEOUT;
    accept_risk: CheckNames = ACCEPT_RISK;
    gauge_interval: DurationOrZero = GAUGE_INTERVAL;
    node: Option<NodeName> = NODE;
    report_interval: DurationOrZero = REPORT_INTERVAL;
    sweep_interval: Duration = SWEEP_INTERVAL;
    log: LogFormat = LOG;
    log_level: LogLevel = LOG_LEVEL;
}

impl RelaySettings {
    fn check(&self) -> anyhow::Result<()> {
        let is_redis = self.to.as_ref().is_some_and(|to| {
            ["redis://", "rediss://"].iter().any(|scheme| to.secret().starts_with(scheme))
        });
        ensure!(
            self.stream_max_entries.is_none() || self.stream_max_age.is_none(),
            "--stream-max-entries and --stream-max-age exclude each other: Redis trims by one of them"
        );
        ensure!(
            is_redis || self.stream_trim().is_none(),
            "--stream-max-entries and --stream-max-age are for --to redis://…"
        );
        check_worker(self.lease, self.backoff, self.backoff_max)
    }

    pub(crate) fn stream_trim(&self) -> Option<StreamTrim> {
        let entries = self.stream_max_entries.map(|n| StreamTrim::MaxEntries(n as u64));
        entries.or(self.stream_max_age.map(StreamTrim::MaxAge))
    }
}

impl SettingValue for QueueName {
    fn parse(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| error.to_string())
    }
}
