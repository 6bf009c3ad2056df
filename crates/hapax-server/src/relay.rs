//! `hapax relay`: drains the outbox into a broker, a webhook or hapax's own bus.

use std::io::{stderr, stdout};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use hapax::Store;
use hapax::bus::{Bus, BusConfig, ClosingEvent};
use hapax_relay::sinks::{
    BusSink, JsonLinesSink, NatsSink, RabbitMqSink, RedisStreamSink, WebhookConfig, WebhookSink,
};
use hapax_relay::{Backoff, CloudEvents, Relay, RelayConfig, Sink, TargetHealth};

use crate::api::LocalApi;
use crate::daemon::{Daemon, DaemonSettings, IoTimeouts, admin_line, open_store, print_banner};
use crate::settings::{CommandSettings, RelaySettings, SecretUrl, SettingFlags, SettingSources};

/// Relays until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<RelaySettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = RelaySettings::read(&sources)?;
    let (from, to) = ends(&settings)?;
    let mut daemon = Daemon::boot(&sources, daemon_settings(&settings, from)).await?;
    let bus_store = match &settings.bus_store {
        Some(url) => open_store(url, settings.store_timeout, None)?,
        None => daemon.store.clone(),
    };
    let sink = open_sink(to, &settings, bus_store).context("--to")?;
    let sink_name = sink.name();
    let relay = Relay::with(daemon.store.clone(), sink, relay_config(&settings));
    let relay = relay.pausable(daemon.store.clone());
    let sink = relay.health();
    let reporter = daemon.reporter.take();
    if let Some(reporter) = &reporter {
        let queue = settings.queue.as_str();
        reporter.status().follow_target(sink_name, Some(queue), sink.clone());
    }
    daemon.readiness.require("sink", move || match &*sink.borrow() {
        TargetHealth::Up => None,
        TargetHealth::Down(reason) => Some(reason.clone().into_owned()),
    });
    let queues = LocalApi::new(&daemon)?.queues();
    let admin = daemon.serve_admin(settings.admin.as_ref(), queues).await?;
    print(&settings, from, to, admin);
    relay.run(daemon.stopped()).await;
    if let Some(reporter) = reporter {
        reporter.stop().await;
    }
    Ok(ExitCode::SUCCESS)
}

fn daemon_settings<'a>(settings: &'a RelaySettings, from: &'a SecretUrl) -> DaemonSettings<'a> {
    DaemonSettings {
        log: settings.log,
        log_level: settings.log_level,
        store: from,
        store_timeout: settings.store_timeout,
        redis_verbatim: None,
        accept_risk: &settings.accept_risk,
        gauge_interval: settings.gauge_interval.0,
        edge: "relay",
        node: settings.node.as_ref(),
        report_interval: settings.report_interval.0,
        sweep_interval: settings.sweep_interval,
        listen: None,
        timeouts: IoTimeouts { header: settings.send_timeout, idle: settings.send_timeout },
        max_connections: 0,
    }
}

/// Where rows come from and where they go.
fn ends(settings: &RelaySettings) -> anyhow::Result<(&SecretUrl, &SecretUrl)> {
    let from = settings.from.as_ref().context(
        "--from is needed: the store whose queue is drained, as in --from sqlite:shop.db",
    )?;
    let to = settings.to.as_ref();
    let to = to.with_context(|| format!("--to is needed: {}", EXPECTED))?;
    Ok((from, to))
}

fn relay_config(settings: &RelaySettings) -> RelayConfig {
    RelayConfig::new()
        .queue(settings.queue.clone())
        .lease(settings.lease)
        .max_attempts(u32::try_from(settings.max_attempts).unwrap_or(u32::MAX))
        .backoff(Backoff::new(settings.backoff, settings.backoff_max))
        .after_dead(settings.after_dead)
        .retention(settings.retention.0)
        .max_batch(settings.batch)
        .poll_interval(settings.poll)
        .send_timeout(settings.send_timeout)
        .store_timeout(settings.store_timeout * 2)
        .shutdown_timeout(settings.shutdown_timeout)
        .cloudevents(
            settings.cloudevents.then(|| CloudEvents::new(&*settings.cloudevents_source.0)),
        )
}

/// Prints both ends, and one line to try; on standard error where standard output is the sink.
fn print(settings: &RelaySettings, from: &SecretUrl, to: &SecretUrl, admin: Option<SocketAddr>) {
    let title = format!("relay drains `{}`", settings.queue.as_str());
    let row = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{}')";
    let lines = [
        ("from", from.shown()),
        ("to", to.shown()),
        admin_line(admin, "/healthz, /readyz, /metrics"),
        ("try", row.to_owned()),
    ];
    match is_stdout(to) {
        true => print_banner(stderr(), &title, &lines),
        false => print_banner(stdout(), &title, &lines),
    }
}

const EXPECTED: &str = "nats://…, tls://… (NATS), amqp://…, amqps://…, redis://…, \
    rediss://…, http://…, https://…, bus or stdout";

fn open_sink(
    to: &SecretUrl,
    settings: &RelaySettings,
    bus: Arc<dyn Store>,
) -> anyhow::Result<Arc<dyn Sink>> {
    let url = to.secret();
    Ok(match url.split_once("://").map_or(url, |(scheme, _)| scheme) {
        "nats" | "tls" => Arc::new(NatsSink::new(url)?),
        "amqp" | "amqps" => Arc::new(RabbitMqSink::new(url)?),
        "redis" | "rediss" => Arc::new(RedisStreamSink::new(url)?.trim(settings.stream_trim())),
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
fn is_stdout(to: &SecretUrl) -> bool {
    matches!(to.secret(), "stdout" | "-")
}
