//! A steady load without faults, for minutes or hours: memory, open files and the store's size have to level off, because
//! everything that is written is kept for seconds only.

mod curve;
mod picture;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hapax::queue::{QueueItem, QueueName};
use hapax::{Store, StoreConfig, Tenant};
use hapax_testkit::Program;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::installation::StoreKind;
use crate::load::generator::{
    GeneratedLoad, GeneratorOrder, GeneratorPlan, GeneratorReport, generate,
};
use crate::load::loaded_servers::LoadedServers;
use crate::load::start_upstream;
use crate::process_metrics::{open_files, resident_memory};
use curve::{Curve, CurveKind};

/// How long everything is kept.
const RETENTION: Duration = Duration::from_secs(10);
/// How many samples a long run has.
const SAMPLES: u32 = 720;
/// Reports of activity are kept for hours: what they take has levelled off after a third of this time.
const REPORTED_FROM: Duration = Duration::from_secs(18 * 3600);
/// How many streams are open.
const STREAMS: usize = 50;

/// What to run.
#[derive(Clone, Debug)]
pub struct SoakConfig {
    /// The `hapax` binary.
    pub hapax: PathBuf,
    /// Where the data is.
    pub store: StoreKind,
    /// How long it runs.
    pub duration: Duration,
    /// How many calls are made in each second.
    pub rate: u64,
}

/// The result of a soak.
pub struct SoakReport {
    store: String,
    duration: Duration,
    curves: Vec<Curve>,
    calls: GeneratorReport,
    ended: Vec<String>,
}

/// Runs and samples. `progress` gets a line every half a minute.
///
/// # Errors
///
/// When something could not be started.
pub fn run_soak(config: &SoakConfig, progress: impl Fn(&str)) -> anyhow::Result<SoakReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = soak(config, &runtime, &progress);
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

fn soak(
    config: &SoakConfig,
    runtime: &Runtime,
    progress: &dyn Fn(&str),
) -> anyhow::Result<SoakReport> {
    let _guard = runtime.enter();
    let upstream = runtime.block_on(start_upstream())?;
    let retention = format!("{}s", RETENTION.as_secs());
    let further: &[&str] =
        if config.duration < REPORTED_FROM { &["--report-interval", "0s"] } else { &[] };
    let keep = Some(retention.as_str());
    let servers =
        LoadedServers::start(config.store, &config.hapax, &upstream, 0, 1, keep, further)?;
    let relay = start_relay(config, &servers, &upstream, &retention, further)?;
    let store = hapax::open(&servers.store.url(), &StoreConfig::default())?;
    tokio::spawn(enqueue(store, config.rate / 10 + 1));
    let (orders, received) = watch::channel(GeneratorOrder::Run);
    let reports: Vec<watch::Receiver<GeneratorReport>> =
        plans(config, &servers).into_iter().map(|plan| start(plan, &received)).collect();

    let mut processes: Vec<(String, i32)> = Vec::new();
    for server in servers.all() {
        processes.push((server.name.clone(), server.pid().context("a server's process")?));
    }
    processes.push(("relay".to_owned(), relay.pid().context("the relay's process")?));
    processes.extend(servers.store.pid().map(|pid| ("store".to_owned(), pid)));
    let mut curves = Vec::new();
    for kind in [CurveKind::Memory, CurveKind::OpenFiles] {
        curves.extend(processes.iter().map(|(name, _)| Curve::new(kind, name)));
    }
    curves.push(Curve::new(CurveKind::StoreSize, "store"));

    let began = Instant::now();
    let interval = (config.duration / SAMPLES).max(Duration::from_millis(500));
    let mut next_line = Duration::from_secs(30);
    while began.elapsed() < config.duration {
        thread::sleep(interval);
        let now = began.elapsed().as_secs_f64();
        let memory = processes.iter().map(|(_, pid)| resident_memory(*pid));
        let files = processes.iter().map(|(_, pid)| open_files(*pid));
        let values = memory.chain(files).chain([servers.store.size().ok()]);
        for (curve, value) in curves.iter_mut().zip(values) {
            curve.points.extend(value.map(|value| (now, value as f64)));
        }
        if began.elapsed() > next_line {
            next_line += Duration::from_secs(30);
            let last: Vec<String> = curves.iter().map(Curve::last).collect();
            progress(&format!("{:>6.0} s  {}", now, last.join(", ")));
        }
    }
    let ended =
        servers.all().filter_map(|server| Some(format!("{}\n{}", server.name, server.death()?)));
    let mut ended: Vec<String> = ended.collect();
    ended.extend(relay.has_ended().then(|| relay.log_tail()));
    let _ = orders.send_replace(GeneratorOrder::Stop);
    let mut calls = GeneratorReport::default();
    for report in reports {
        let report = report.borrow();
        calls.open += report.open;
        calls.offered += report.offered;
        calls.served += report.served;
        calls.refused += report.refused;
        calls.failed += report.failed;
    }
    let store = config.store.name().to_owned();
    Ok(SoakReport { store, duration: began.elapsed(), curves, calls, ended })
}

fn plans(config: &SoakConfig, servers: &LoadedServers) -> Vec<GeneratorPlan> {
    let plan = |name: &str, load, address: &str, connections| GeneratorPlan {
        load,
        name: name.to_owned(),
        addresses: vec![address.to_owned()],
        tokens: servers.loud_tokens.clone(),
        connections,
        retention: Some(RETENTION.as_millis() as u64),
    };
    let calls = |proxied| GeneratedLoad::Calls { proxied, rate: Some(config.rate / 2 + 1) };
    let (node, proxy) = (&servers.nodes[0].address, &servers.proxy.address);
    vec![
        plan("soak", calls(false), node, 16),
        plan("soak-proxied", calls(true), proxy, 16),
        plan("soak-streams", GeneratedLoad::IdleStreams, node, STREAMS),
    ]
}

fn start(
    plan: GeneratorPlan,
    orders: &watch::Receiver<GeneratorOrder>,
) -> watch::Receiver<GeneratorReport> {
    let (sender, reports) = watch::channel(GeneratorReport::default());
    tokio::spawn(generate(plan, orders.clone(), move |report| drop(sender.send(report))));
    reports
}

/// Messages for the relay.
async fn enqueue(store: Arc<dyn Store>, rate: u64) {
    let mut ticks =
        tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate).unwrap_or(1));
    for number in 0_u64.. {
        ticks.tick().await;
        let item =
            QueueItem::new(&Tenant::default(), "soak", "{}").key(&format!("key-{}", number % 20));
        let _ = store.enqueue(&QueueName::outbox(), &[item]).await;
    }
}

fn start_relay(
    config: &SoakConfig,
    servers: &LoadedServers,
    upstream: &str,
    retention: &str,
    further: &[&str],
) -> anyhow::Result<Program> {
    let (from, to) = (servers.store.url(), format!("{upstream}/orders"));
    let mut command = Command::new(&config.hapax);
    command.env_clear().current_dir("/").args(["relay", "--from", &from, "--to", &to]);
    command.args(["--allow-private", "--retention", retention, "--sweep-interval", "2s"]);
    command.args(["--log-level", "error"]).args(further);
    let relay = Program::start("relay", command);
    thread::sleep(Duration::from_millis(300));
    if relay.has_ended() {
        bail!("the relay ended\n{}", relay.log_tail());
    }
    Ok(relay)
}

impl SoakReport {
    /// Whether nothing grows without bound and no process ended.
    pub fn is_level(&self) -> bool {
        self.ended.is_empty() && self.curves.iter().all(|curve| !curve.grows_without_bound())
    }

    /// Processes that ended, with the ends of their logs.
    pub fn ended(&self) -> &[String] {
        &self.ended
    }

    /// How many calls were served.
    pub fn served(&self) -> u64 {
        self.calls.served
    }

    /// Every sample: seconds, curve, value.
    pub fn csv(&self) -> String {
        let mut text = String::from("seconds,process,what,value\n");
        for curve in &self.curves {
            for (at, value) in &curve.points {
                let _ = writeln!(text, "{at:.1},{},{},{value}", curve.name, curve.kind.name());
            }
        }
        text
    }

    /// The curves as an SVG picture.
    pub fn picture(&self) -> String {
        picture::draw(&self.curves, &format!("hapax on {}", self.store))
    }

    /// A table in Markdown: what each curve does after the first third.
    pub fn table(&self) -> String {
        let calls = &self.calls;
        let mut text = format!(
            "Store: {}, {:.1} minutes, {} calls served, {} refused, {} cut\n\n",
            self.store,
            self.duration.as_secs_f64() / 60.0,
            calls.served,
            calls.refused,
            calls.failed
        );
        text.push_str("| process | what | at the end | largest | slope for an hour | |\n|---|---|---|---|---|---|\n");
        for curve in &self.curves {
            let _ = writeln!(text, "{}", curve.row());
        }
        for ended in &self.ended {
            let _ = writeln!(text, "\nENDED: {ended}");
        }
        text
    }
}
