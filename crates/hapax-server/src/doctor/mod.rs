//! `hapax doctor`: what would break which promise, and how to fix it.

mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::queue::QueueName;
use hapax::{Finding, OpenMode, Promise, Severity, Store, StoreConfig, StoreError};

use crate::client::{duration, print_line};
use crate::daemon::default_store_config;
use crate::migrate;
use report::DoctorReport;

const PINGS: usize = 9;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax doctor --store sqlite:hapax.db
  hapax doctor --store redis://127.0.0.1:6379 --strict     for a deployment's checks
  hapax doctor --store redis://… --accept-risk redis.eviction      in CI, on purpose
  hapax doctor --store redis://… --retention 24h --redelivery 72h
  hapax doctor --store postgres://… --redelivery 45d --inbox-retention 60d

It changes nothing, also where there is no file or table yet; `hapax migrate` creates them.

The longest redelivery of a broker is how long it keeps an unacknowledged message:
`max_age` of a JetStream stream, `x-message-ttl` of a RabbitMQ queue (none is for ever). The age of
the oldest outbox row, which a relay may send again, is read from the store.

Exit codes:
  0   nothing that has to be fixed
  1   there are warnings, and --strict was given
  2   the store must not be used like this, or cannot be reached")]
pub(crate) struct DoctorArgs {
    /// The store: sqlite:FILE, redis://…, postgres://…, memory:
    #[arg(long, env = "HAPAX_STORE", value_name = "URL", default_value = "sqlite:hapax.db")]
    #[arg(hide_env_values = true)]
    store: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Runs `hapax migrate` first; kept for scripts of earlier versions
    #[arg(long, hide = true)]
    migrate: bool,
    /// Only warn where this check refuses the store; may be repeated
    #[arg(long, env = "HAPAX_ACCEPT_RISK", value_name = "NAME", value_delimiter = ',')]
    accept_risk: Vec<String>,
    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,
    /// How long outcomes are kept
    #[arg(long, value_parser = duration, default_value = "24h")]
    retention: Duration,
    /// How long consumers recognise a message
    #[arg(long, value_parser = duration, default_value = "30d")]
    inbox_retention: Duration,
    /// The longest time after which a message or a request is delivered again; compared with both
    /// retentions
    #[arg(long, value_parser = duration)]
    redelivery: Option<Duration>,
}

pub(crate) async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut report = examine(&args).await;
    report.accept(&args.accept_risk);
    print_line(if args.json { report.json().to_string() } else { report.message() });
    Ok(match report.worst() {
        Severity::Refuse => 2.into(),
        Severity::Warn if args.strict => 1.into(),
        _ => ExitCode::SUCCESS,
    })
}

async fn examine(args: &DoctorArgs) -> DoctorReport {
    let mut report = DoctorReport::new(scheme(&args.store));
    if args.migrate
        && let Err(error) = migrate::migrate(&args.store).await
    {
        report.findings.push(unusable(&error));
        return report;
    }
    match hapax::open(&args.store, &default_store_config().mode(OpenMode::ReadOnly)) {
        Ok(store) => {
            report.store = store.name().to_owned();
            report.findings = findings(&store, StoreConfig::DEFAULT_TIMEOUT).await;
            let inbox = inbox_retention(&*store, args.inbox_retention, args.redelivery);
            report.findings.extend(inbox.await);
        }
        Err(error) => report.findings.push(unusable(&error)),
    }
    let kept = args.redelivery.map(|longest| outcome_retention(args.retention, longest));
    report.findings.extend(kept);
    report
}

async fn findings(store: &Arc<dyn Store>, limit: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    match ping(&**store).await {
        Ok(times) => findings.push(latency(times, limit)),
        Err(error) => return vec![unusable(&error)],
    }
    match store.examine().await {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(unusable(&error)),
    }
    findings
}

/// The sorted latencies of the pings. The first ping may have to connect, and does not count.
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
    let (shown, slowest, pings) = (ms(median), ms(slowest), times.len());
    let detail = format!("answers in {shown:.2} ms (median of {pings}, slowest {slowest:.2} ms)");
    // A claim that is retried once would spend most of its timeout on the network.
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
        StoreError::Replaced { .. } => "restore its files and restart, or restart without them",
        StoreError::Locked { .. } => "end the process that holds it",
        StoreError::Refused { .. } => {
            "check the user and the password of the URL, and the rights of the role"
        }
        _ => "see the message",
    };
    let broken = Promise::BoundedTime;
    let finding = Finding::refuse("store.reach", broken, error.to_string(), fix);
    // An unreachable store breaks no promise: calls fail within their timeout.
    Finding { breaks: None, ..finding }
}

/// The scheme of a URL, which has no secrets.
fn scheme(url: &str) -> String {
    url.split(':').next().unwrap_or_default().to_owned()
}

/// Checks the retention of command outcomes.
fn outcome_retention(kept: Duration, longest: Duration) -> Finding {
    compare_retention("retention", "outcomes are kept", kept, longest, "--redelivery")
}

/// Checks the inbox's retention against the longest known redelivery: the given one, or the age of the
/// oldest outbox row, which may be sent again at any time. `None` where neither is known.
async fn inbox_retention(
    store: &dyn Store,
    kept: Duration,
    said: Option<Duration>,
) -> Option<Finding> {
    // An unreachable store has its own finding.
    let depth = store.depth(&QueueName::outbox(), None).await.ok();
    let seen = depth.and_then(|depth| depth.oldest_age);
    let (longest, whose) = match (said, seen) {
        (Some(said), Some(seen)) if seen > said => (seen, "the oldest row of the outbox"),
        (Some(said), _) => (said, "--redelivery"),
        (None, Some(seen)) => (seen, "the oldest row of the outbox"),
        (None, None) => return None,
    };
    Some(compare_retention("inbox.retention", "messages are recognised", kept, longest, whose))
}

fn compare_retention(
    check: &'static str,
    what: &str,
    kept: Duration,
    longest: Duration,
    whose: &str,
) -> Finding {
    let (kept_text, longest_text) = (shown(kept), shown(longest));
    if kept < longest {
        return Finding::warn(
            check,
            Promise::Remembered,
            format!(
                "{what} for {kept_text}, but the same thing may come again after {longest_text} \
                 ({whose}): it would run a second time"
            ),
            format!("keep them for at least {longest_text}"),
        );
    }
    Finding::fine(check, format!("{kept_text}, longer than any redelivery ({longest_text})"))
}

/// The time in whole seconds, as people write it.
fn shown(time: Duration) -> String {
    let whole = if time.as_secs() > 0 { Duration::from_secs(time.as_secs()) } else { time };
    humantime::format_duration(whole).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax::memory::MemoryStore;

    #[test]
    fn scheme_shows_no_secret_of_a_url() {
        assert_eq!(scheme("redis://user:secret@host:6379"), "redis");
    }

    #[test]
    fn latency_above_a_quarter_of_the_timeout_is_a_warning() {
        let limit = Duration::from_secs(2);
        let slow = latency(vec![Duration::from_millis(600); 9], limit);
        assert_eq!(slow.severity, Severity::Warn);
        let fast = latency(vec![Duration::from_millis(1); 9], limit);
        assert_eq!(fast.severity, Severity::Fine);
    }

    const DAY: Duration = Duration::from_secs(86_400);
    const WEEK: Duration = Duration::from_secs(7 * 86_400);

    #[test]
    fn outcome_retention_below_redelivery_is_a_warning() {
        assert_eq!(outcome_retention(DAY, WEEK).severity, Severity::Warn);
        assert_eq!(outcome_retention(WEEK, DAY).severity, Severity::Fine);
        assert_eq!(outcome_retention(DAY, DAY).severity, Severity::Fine);
    }

    #[tokio::test]
    async fn inbox_retention_below_redelivery_is_a_warning() {
        let store = MemoryStore::default();
        let found = inbox_retention(&store, DAY, Some(WEEK)).await.unwrap();
        assert_eq!((found.check, found.severity), ("inbox.retention", Severity::Warn));
        let found = inbox_retention(&store, WEEK, Some(DAY)).await.unwrap();
        assert_eq!(found.severity, Severity::Fine);
        assert_eq!(inbox_retention(&store, WEEK, None).await, None);
    }
}
