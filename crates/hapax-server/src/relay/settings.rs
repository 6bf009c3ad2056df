//! Every setting of the relay: one declaration gives its flag, environment variable, file key and
//! help.

use std::time::Duration;

use anyhow::{Context, ensure};
use hapax::queue::QueueName;
use hapax_relay::{AfterDead, Backoff, CloudEvents, RelayConfig};

use crate::settings::shared::{LOG, LOG_LEVEL, STORE_TIMEOUT};
use crate::settings::{
    self, LONGEST_LEASE, Level, Listen, LogFormat, OrZero, Setting, StoreUrl, Value, choice,
    settings, sources,
};

/// Its flags.
pub(crate) type Args = sources::Args<Section>;
/// Everything that was said about its settings.
pub(crate) type Sources = sources::Sources<Section>;

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
      to see what would go out (and take it off the queue)

Rows of one key are delivered in order, different keys at once; any number of relays may share a
queue. A row that fails is tried again, then becomes a dead letter: `hapax queue dead outbox` lists
them. While the target is away the relay waits, and nobody's attempts are used up.
Enqueue in your own transaction, in any language:
  INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{\"n\":1}')";

/// The file says nothing to it that a flag could not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Section;

impl settings::Section for Section {
    const TABLE: &'static [Setting] = TABLE;
    const KEYS: &'static str = "no others";
    const EXAMPLES: Option<&'static str> = Some(EXAMPLES);

    fn take(_: &mut toml::Table) -> anyhow::Result<Self> {
        Ok(Self)
    }
}

settings! {
    /// What flags, environment and file say.
    Settings, section: Section;
    from: Option<StoreUrl> = Setting {
        flag: "from", env: "HAPAX_FROM", key: "relay.from",
        value: "URL", default: "", seed: None,
        help: "The store whose queue is drained: postgres://…, sqlite:FILE or redis://…",
    };
    to: Option<StoreUrl> = Setting {
        flag: "to", env: "HAPAX_TO", key: "relay.to",
        value: "TARGET", default: "", seed: None,
        help: "nats://…, amqp://…[?exchange=NAME], redis://…, http(s)://…, bus or stdout",
    };
    queue: Name = Setting {
        flag: "queue", env: "HAPAX_QUEUE", key: "relay.queue",
        value: "NAME", default: "outbox", seed: None,
        help: "Which queue",
    };
    lease: Duration = Setting {
        flag: "lease", env: "HAPAX_LEASE", key: "relay.lease",
        value: "TIME", default: "30s", seed: None,
        help: "How long a relay that died is believed alive; at most 1h",
    };
    max_attempts: usize = Setting {
        flag: "max-attempts", env: "HAPAX_MAX_ATTEMPTS", key: "relay.max_attempts",
        value: "NUMBER", default: "10", seed: None,
        help: "How often a row is tried before it becomes a dead letter",
    };
    backoff: Duration = Setting {
        flag: "backoff", env: "HAPAX_BACKOFF", key: "relay.backoff",
        value: "TIME", default: "500ms", seed: None,
        help: "How long a row waits after its first failure; twice as long after each further one",
    };
    backoff_max: Duration = Setting {
        flag: "backoff-max", env: "HAPAX_BACKOFF_MAX", key: "relay.backoff_max",
        value: "TIME", default: "60s", seed: None,
        help: "The longest such wait",
    };
    after_dead: AfterDead = Setting {
        flag: "after-dead", env: "HAPAX_AFTER_DEAD", key: "relay.after_dead",
        value: "POLICY", default: "wait", seed: None,
        help: "Later rows of a dead letter's key: wait (until it is requeued or discarded) or continue",
    };
    keep: OrZero = Setting {
        flag: "keep", env: "HAPAX_KEEP", key: "relay.keep",
        value: "TIME", default: "1h", seed: None,
        help: "How long a delivered row is kept, to recognise the same id",
    };
    batch: usize = Setting {
        flag: "batch", env: "HAPAX_BATCH", key: "relay.batch",
        value: "NUMBER", default: "1000", seed: None,
        help: "The most rows of one lease; how many it really are follows the load",
    };
    poll: Duration = Setting {
        flag: "poll", env: "HAPAX_POLL", key: "relay.poll",
        value: "TIME", default: "500ms", seed: None,
        help: "How often the queue is looked at where no hint comes",
    };
    send_timeout: Duration = Setting {
        flag: "send-timeout", env: "HAPAX_SEND_TIMEOUT", key: "relay.send_timeout",
        value: "TIME", default: "10s", seed: None,
        help: "How long one message may take",
    };
    webhook_secret: Option<Secret> = Setting {
        flag: "webhook-secret", env: "HAPAX_WEBHOOK_SECRET", key: "relay.webhook_secret",
        value: "SECRET", default: "", seed: None,
        help: "Signs webhooks (Standard Webhooks): whsec_ and base64, or any text",
    };
    allow_private: bool = Setting {
        flag: "allow-private", env: "HAPAX_ALLOW_PRIVATE", key: "relay.allow_private",
        value: "", default: "false", seed: None,
        help: "Also call webhooks on private networks and on this machine",
    };
    cloudevents: bool = Setting {
        flag: "cloudevents", env: "HAPAX_CLOUDEVENTS", key: "relay.cloudevents",
        value: "", default: "false", seed: None,
        help: "Send CloudEvents 1.0 in binary mode: the attributes as headers",
    };
    cloudevents_source: Secret = Setting {
        flag: "cloudevents-source", env: "HAPAX_CLOUDEVENTS_SOURCE", key: "relay.cloudevents_source",
        value: "URI", default: "/hapax", seed: None,
        help: "Their attribute `source`",
    };
    bus_store: Option<StoreUrl> = Setting {
        flag: "bus-store", env: "HAPAX_BUS_STORE", key: "relay.bus_store",
        value: "URL", default: "", seed: None,
        help: "The store that has the jobs, for --to bus; the one of --from where it is not said",
    };
    admin: Option<Listen> = Setting {
        flag: "admin", env: "HAPAX_ADMIN", key: "relay.admin",
        value: "ADDR", default: "", seed: None,
        help: "Serve /healthz, /readyz and /metrics there; on loopback /v1/queues too",
    };
    shutdown_timeout: Duration = Setting {
        flag: "shutdown-timeout", env: "HAPAX_SHUTDOWN_TIMEOUT", key: "relay.shutdown_timeout",
        value: "TIME", default: "30s", seed: None,
        help: "How long messages on their way may take at shutdown",
    };
    store_timeout: Duration = STORE_TIMEOUT;
    sweep_interval: Duration = Setting {
        flag: "sweep-interval", env: "HAPAX_SWEEP_INTERVAL", key: "sweep_interval",
        value: "TIME", default: "60s", seed: None,
        help: "How often delivered rows that are old enough are deleted",
    };
    log: LogFormat = LOG;
    log_level: Level = LOG_LEVEL;
}

impl Settings {
    /// What no single value can know about itself.
    fn check(&self) -> anyhow::Result<()> {
        let Section = self.section;
        ensure!(self.lease <= LONGEST_LEASE, "the lease is at most 1h");
        ensure!(self.backoff <= self.backoff_max, "--backoff is at most --backoff-max");
        Ok(())
    }

    /// Where rows come from and where they go.
    pub(super) fn ends(&self) -> anyhow::Result<(&StoreUrl, &StoreUrl)> {
        let from = self.from.as_ref();
        let from = from.context(
            "--from is needed: the store whose queue is drained, as in --from sqlite:shop.db",
        )?;
        let to = self.to.as_ref();
        let to = to.with_context(|| format!("--to is needed: {}", super::target::EXPECTED))?;
        Ok((from, to))
    }

    /// What the library is told.
    pub(super) fn relay(&self) -> RelayConfig {
        let config = RelayConfig::new()
            .queue(self.queue.0.clone())
            .lease(self.lease)
            .max_attempts(u32::try_from(self.max_attempts).unwrap_or(u32::MAX))
            .backoff(Backoff::new(self.backoff, self.backoff_max))
            .after_dead(self.after_dead)
            .retention(self.keep.0)
            .max_batch(self.batch)
            .poll_interval(self.poll)
            .send_timeout(self.send_timeout)
            .store_timeout(self.store_timeout * 2)
            .shutdown_timeout(self.shutdown_timeout);
        if !self.cloudevents {
            return config;
        }
        config.cloudevents(CloudEvents::new(&self.cloudevents_source.0))
    }
}

/// The name of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Name(pub(super) QueueName);

impl Value for Name {
    fn parse(text: &str) -> Result<Self, String> {
        QueueName::new(text).map(Self).map_err(|error| error.to_string())
    }
}

/// A text that is not shown.
#[derive(Clone)]
pub(crate) struct Secret(pub(super) String);

impl Value for Secret {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a text is expected".into());
        }
        Ok(Self(text.into()))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl Value for AfterDead {
    fn parse(text: &str) -> Result<Self, String> {
        choice(text, &[("wait", Self::Wait), ("continue", Self::Continue)])
    }
}
