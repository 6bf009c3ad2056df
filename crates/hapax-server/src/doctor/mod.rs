//! `hapax doctor`: what would break which promise, and how to fix it.

mod redelivery;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::{Finding, Promise, Severity, Store, StoreConfig, StoreError};

use crate::client::{duration, line};
use report::Report;

/// How many times the store is asked, to know how quickly it answers.
const PINGS: usize = 9;

const EXAMPLES: &str = "\
Examples:
  hapax doctor --store sqlite:hapax.db
  hapax doctor --store redis://127.0.0.1:6379 --strict     for a deployment's checks
  hapax doctor --store postgres://app@db/app --migrate     makes the tables
  hapax doctor --store redis://… --retention 24h --redelivery 72h
  hapax doctor --store postgres://… --redelivery 45d --inbox-retention 60d

The longest redelivery of a broker is how long it keeps a message that nobody acknowledges:
`max_age` of a JetStream stream, `x-message-ttl` of a RabbitMQ queue (none is for ever). The age of
the oldest row of the outbox, which a relay may send again, is looked up by itself.

Exit codes:
  0   nothing that has to be fixed
  1   there are warnings, and --strict was given
  2   the store must not be used like this, or cannot be reached";

/// The arguments of `hapax doctor`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Which store: sqlite:FILE, redis://…, postgres://…, memory:
    #[arg(long, env = "HAPAX_STORE", value_name = "URL", default_value = "sqlite:hapax.db")]
    #[arg(hide_env_values = true)]
    store: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Make the tables, where the store has tables
    #[arg(long)]
    migrate: bool,
    /// Exit with 1 where there are warnings
    #[arg(long)]
    strict: bool,
    /// How long outcomes are kept
    #[arg(long, value_parser = duration, default_value = "24h")]
    retention: Duration,
    /// How long consumers recognise a message
    #[arg(long, value_parser = duration, default_value = "30d")]
    inbox_retention: Duration,
    /// The longest time after which anybody delivers a message or a request again; compared with
    /// both retentions
    #[arg(long, value_parser = duration)]
    redelivery: Option<Duration>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let report = examine(&args).await;
    if args.json {
        line(report.json());
    } else {
        line(report.text());
    }
    let warned = args.strict && report.worst() == Severity::Warn;
    Ok(match report.worst() {
        Severity::Refuse => 2.into(),
        _ if warned => 1.into(),
        _ => ExitCode::SUCCESS,
    })
}

async fn examine(args: &Args) -> Report {
    let options = StoreConfig::default();
    let mut report = Report::new(scheme(&args.store));
    match hapax::open(&args.store, &options).await {
        Ok(store) => {
            report.store = store.name().to_owned();
            report.findings = findings(&store, args.migrate, options.call_limit).await;
            let inbox = redelivery::inbox(&*store, args.inbox_retention, args.redelivery);
            report.findings.extend(inbox.await);
        }
        Err(error) => report.findings.push(unusable(&error)),
    }
    let kept = args.redelivery.map(|longest| redelivery::outcomes(args.retention, longest));
    report.findings.extend(kept);
    report
}

async fn findings(store: &Arc<dyn Store>, migrate: bool, limit: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    match ping(&**store).await {
        Ok(times) => findings.push(latency(times, limit)),
        Err(error) => return vec![unusable(&error)],
    }
    if migrate {
        // A store makes what is missing when it first connects, and has answered since.
        findings.push(Finding::fine("store.tables", "everything it needs is in place"));
    }
    match store.examine().await {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(unusable(&error)),
    }
    findings
}

/// How long each ping took, in order. The first one may have to connect, and does not count.
async fn ping(store: &dyn Store) -> Result<Vec<Duration>, StoreError> {
    store.ping().await?;
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let began = Instant::now();
        store.ping().await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

fn latency(times: Vec<Duration>, limit: Duration) -> Finding {
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let detail = format!(
        "answers in {:.2} ms (median of {}, slowest {:.2} ms)",
        ms(median),
        times.len(),
        ms(slowest)
    );
    // One claim that has to be repeated, and the way to the store takes most of its limit.
    if median > limit / 4 {
        let fix = "bring the store and hapax closer together, or raise the limit of a store call";
        return Finding::warn("store.latency", Promise::BoundedTime, detail, fix);
    }
    Finding::fine("store.latency", detail)
}

fn unusable(error: &StoreError) -> Finding {
    let fix = match error {
        StoreError::Unavailable { .. } | StoreError::Timeout { .. } => {
            "check that it runs, and the host and port of the URL; hapax connects when it can"
        }
        StoreError::Full { .. } => "make room",
        StoreError::ReadOnly { .. } => "use the primary, or a file that may be written",
        StoreError::Locked { .. } => "end the process that holds it",
        StoreError::Refused { .. } => "correct the user and the password of the URL",
        _ => "see the message",
    };
    let broken = Promise::BoundedTime;
    let finding = Finding::refuse("store.reach", broken, error.to_string(), fix);
    // That it does not answer breaks no promise: calls fail in time and say so.
    Finding { breaks: None, ..finding }
}

/// What can be said of a URL without showing what is secret in it.
fn scheme(url: &str) -> String {
    url.split(':').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_of_a_url_is_shown() {
        assert_eq!(scheme("redis://user:secret@host:6379"), "redis");
    }

    #[test]
    fn a_store_that_needs_a_quarter_of_its_limit_is_slow() {
        let limit = Duration::from_secs(2);
        let slow = latency(vec![Duration::from_millis(600); 9], limit);
        assert_eq!(slow.severity, Severity::Warn);
        let fast = latency(vec![Duration::from_millis(1); 9], limit);
        assert_eq!(fast.severity, Severity::Fine);
    }
}
