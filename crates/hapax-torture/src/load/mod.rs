//! Far more load than can be served: is a quiet tenant served, is the memory bounded, is anything acknowledged lost, and
//! how long does it take until all is as before?

mod caller;
pub(crate) mod generator;
mod generator_process;
mod idle_streams;
pub(crate) mod loaded_servers;
mod processors;
mod quiet_tenant;
mod raw_http;
mod report;
mod slow_clients;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

pub use generator_process::run_generator_process;
pub use report::{LoadFailure, LoadReport};

use crate::installation::StoreKind;
use generator::{GeneratedLoad, GeneratorPlan, GeneratorReport};
use generator_process::RunningGenerator;
use loaded_servers::{BUFFER_MEMORY, LoadedServers};
use processors::Processors;
use quiet_tenant::{QuietTenant, QuietTimes};
use raw_http::{LoadConnection, request};
use report::LoadRow;

/// How many times more than was served is offered.
const OVERLOAD: u64 = 10;
/// How many tenants offer it.
const LOUD_TENANTS: usize = 10;
/// One process cannot have more connections within an open-file limit of 20,000.
const CONNECTIONS_PER_GENERATOR: usize = 9000;
/// It has failed to recover after this time.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Calls are as fast as before if their p99 is within so many times that of the idle server.
const RECOVERED_RATIO: u32 = 3;
/// Connections are opened within this time, also on a busy machine.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);

/// What to run.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// The `hapax` binary.
    pub hapax: PathBuf,
    /// Where the data is.
    pub store: StoreKind,
    /// How long each kind of load lasts.
    pub seconds: u64,
    /// How many clients send byte by byte, or do not read.
    pub slow_clients: usize,
    /// How many idle event streams are open.
    pub streams: usize,
    /// How many connections the flooding tenant has.
    pub flood: usize,
    /// `--store-calls` of the servers; their own default without it.
    pub store_calls: Option<usize>,
    /// `hapax-torture`, whose processes make the load; without it this process makes it.
    pub program: Option<PathBuf>,
}

/// The most resident memory that a server may have, with so many connections: `docs/server.md` names it.
fn memory_bound(connections: u64) -> u64 {
    (128 << 20) + BUFFER_MEMORY + connections * (128 << 10)
}

/// Runs all kinds of load. `progress` gets a line for each step and every few seconds.
///
/// # Errors
///
/// When something could not be started, or did not end in time.
pub fn run_load(config: &LoadConfig, progress: impl Fn(&str)) -> anyhow::Result<LoadReport> {
    let processors = Processors::halve()?;
    processors.use_for_clients()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = run_all(config, &runtime, &processors, &progress);
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

fn run_all(
    config: &LoadConfig,
    runtime: &Runtime,
    processors: &Processors,
    progress: &dyn Fn(&str),
) -> anyhow::Result<LoadReport> {
    let _guard = runtime.enter();
    let upstream = runtime.block_on(start_upstream())?;
    let store_calls = config.store_calls.map(|number| number.to_string());
    let flags: Vec<&str> =
        store_calls.iter().flat_map(|number| ["--store-calls", number.as_str()]).collect();
    processors.use_for_servers()?;
    let servers = LoadedServers::start(
        config.store,
        &config.hapax,
        &upstream,
        config.streams,
        LOUD_TENANTS,
        None,
        &flags,
    )?;
    processors.use_for_clients()?;
    runtime.block_on(write_large_record(&servers))?;
    let nodes: Vec<String> = servers.nodes.iter().map(|node| node.address.clone()).collect();
    let quiet = QuietTenant::start(&nodes, &servers.proxy.address, &servers.quiet_token)?;
    // Connections, pools and caches are warm before anything is measured.
    thread::sleep(Duration::from_millis(500));
    progress(&format!("{}: idle", config.store.name()));
    let began = Instant::now();
    thread::sleep(Duration::from_secs(config.seconds));
    let idle = quiet.times(began, Instant::now());
    let memory = servers.all().map(|server| (server.name.clone(), server.take_peak_memory()));
    let mut rows = vec![LoadRow::idle(idle, memory.collect())];
    let mut load =
        LoadRun { config, servers: &servers, quiet: &quiet, idle, progress, failures: Vec::new() };
    let busy = load.run(Phase::busy())?;
    // What was served while nothing was refused.
    let capacity = |report: &GeneratorReport| (report.served / config.seconds.max(1)).max(1);
    let rates = [0, 1].map(|number| capacity(&busy.reports[number]) * OVERLOAD);
    rows.push(busy);
    for phase in Phase::all(config, rates) {
        rows.push(load.run(phase)?);
    }
    let mut failures = load.failures;
    progress("asking the quiet tenant's keys again");
    let (acknowledged, lost) = quiet.verify()?;
    rows[0].acknowledged = acknowledged;
    rows[0].lost = lost.len() as u64;
    if let Some(first) = lost.into_iter().next() {
        failures.push(LoadFailure::Lost(first));
    }
    Ok(LoadReport { store: config.store.name().to_owned(), rows, failures })
}

/// A kind of load, and its generators.
struct Phase {
    name: String,
    /// The load, the connections, whether to the proxy, and how many tenants take part.
    generators: Vec<(GeneratedLoad, usize, bool, usize)>,
    /// The measurement begins when so many connections are open.
    waits_for: usize,
    /// The measurement does not begin before this time has passed, in which the clients arrive.
    arrival: Duration,
}

impl Phase {
    fn calls(name: &str, connections: usize, rates: [Option<u64>; 2], tenants: usize) -> Self {
        let generators = [false, true].map(|proxied| {
            let rate = rates[usize::from(proxied)];
            (GeneratedLoad::Calls { proxied, rate }, connections / 2, proxied, tenants)
        });
        // A connection that has no call to make is not open yet.
        let waits_for = if rates == [None, None] { connections * 9 / 10 } else { connections / 2 };
        let (name, arrival) = (name.to_owned(), Duration::ZERO);
        Self { name, generators: generators.to_vec(), waits_for, arrival }
    }

    /// As much as is served without waiting.
    fn busy() -> Self {
        Self::calls("as much as is served", 32, [None, None], LOUD_TENANTS)
    }

    fn all(config: &LoadConfig, rates: [u64; 2]) -> Vec<Self> {
        let many = |load, count: usize, tenants| {
            let processes = count.div_ceil(CONNECTIONS_PER_GENERATOR).max(1);
            vec![(load, count.div_ceil(processes), false, tenants); processes]
        };
        vec![
            Self::calls("ten times as much", config.flood * 2, rates.map(Some), LOUD_TENANTS),
            Self::calls("one tenant floods", config.flood, [None, None], 1),
            Self {
                name: format!("{} slow clients", config.slow_clients),
                generators: many(GeneratedLoad::SlowClients, config.slow_clients, 1),
                waits_for: config.slow_clients * 9 / 10,
                // Clients that do not read ask for a large record 20 times when they arrive, which is a flood of its own.
                arrival: slow_clients::arrival_time(config.slow_clients),
            },
            Self {
                name: format!("{} idle streams", config.streams),
                generators: many(GeneratedLoad::IdleStreams, config.streams, 1),
                waits_for: config.streams,
                arrival: Duration::ZERO,
            },
        ]
    }
}

struct LoadRun<'a> {
    config: &'a LoadConfig,
    servers: &'a LoadedServers,
    quiet: &'a QuietTenant,
    idle: QuietTimes,
    progress: &'a dyn Fn(&str),
    failures: Vec<LoadFailure>,
}

impl LoadRun<'_> {
    fn run(&mut self, phase: Phase) -> anyhow::Result<LoadRow> {
        // Measured again, because other programs of the machine come and go.
        let quiet_since = Instant::now();
        thread::sleep(Duration::from_secs(self.config.seconds) / 2);
        self.idle = self.quiet.times(quiet_since, Instant::now());
        (self.progress)(&format!("{}: begins", phase.name));
        let mut generators = Vec::new();
        for (number, (load, connections, proxied, tenants)) in phase.generators.iter().enumerate() {
            generators.push(self.start_generator(
                number,
                *load,
                *connections,
                *proxied,
                *tenants,
            )?);
        }
        let waiting = Instant::now();
        let open = |generators: &[RunningGenerator]| {
            generators.iter().map(|one| one.report().open).sum::<u64>()
        };
        while (open(&generators) < phase.waits_for as u64 || waiting.elapsed() < phase.arrival)
            && waiting.elapsed() < OPEN_TIMEOUT
        {
            thread::sleep(Duration::from_millis(100));
        }
        let before = sum(&generators);
        let began = Instant::now();
        let end = began + Duration::from_secs(self.config.seconds);
        let mut next_line = began + Duration::from_secs(5);
        while Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
            if Instant::now() > next_line {
                next_line += Duration::from_secs(5);
                (self.progress)(&describe(&phase.name, &sum(&generators)));
            }
        }
        let after = sum(&generators);
        let ended = Instant::now();
        generators.iter_mut().for_each(RunningGenerator::stop);
        let recovered = self.wait_for_recovery();
        // Calls that were still waiting when the load ended belong to it.
        let quiet = self.quiet.times(began, ended);
        let peaks =
            self.servers.all().map(|server| (server.name.clone(), server.take_peak_memory()));
        let memory: Vec<(String, u64)> = peaks.collect();
        (self.progress)(&format!("{}: asking again for what was acknowledged", phase.name));
        let mut reports = Vec::new();
        for generator in generators {
            reports.push(generator.verify()?);
        }
        let connections =
            phase.generators.iter().map(|(_, connections, ..)| *connections as u64).sum();
        self.check(&phase, connections, recovered, &memory, &reports);
        let seconds = (ended - began).as_secs_f64();
        let per_second = |after: u64, before: u64| (after.saturating_sub(before)) as f64 / seconds;
        Ok(LoadRow {
            name: phase.name,
            open: after.open,
            offered: per_second(after.offered, before.offered),
            served: per_second(after.served, before.served),
            refused: per_second(after.refused, before.refused),
            failed: per_second(after.failed, before.failed),
            quiet,
            idle: self.idle,
            memory,
            memory_bound: memory_bound(connections),
            acknowledged: reports.iter().map(|report| report.acknowledged).sum(),
            lost: reports.iter().map(|report| report.lost_count).sum(),
            recovered: Some(recovered),
            reports,
        })
    }

    fn start_generator(
        &self,
        number: usize,
        load: GeneratedLoad,
        connections: usize,
        proxied: bool,
        tenants: usize,
    ) -> anyhow::Result<RunningGenerator> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let nodes: Vec<String> =
            self.servers.nodes.iter().map(|node| node.address.clone()).collect();
        let addresses = match load {
            GeneratedLoad::Calls { .. } if proxied => vec![self.servers.proxy.address.clone()],
            GeneratedLoad::IdleStreams => nodes,
            // One node, so that the whole load meets it.
            _ => nodes[..1].to_vec(),
        };
        let name = format!("g{}x{number}", NEXT.fetch_add(1, Ordering::SeqCst));
        let tokens = self.servers.loud_tokens[..tenants].to_vec();
        let plan = GeneratorPlan { load, name, addresses, tokens, connections, retention: None };
        RunningGenerator::start(self.config.program.as_deref(), plan)
    }

    /// How long after the end of the load the quiet tenant is served as before; `None` if it is not.
    fn wait_for_recovery(&self) -> Option<Duration> {
        let ended = Instant::now();
        while ended.elapsed() < RECOVERY_TIMEOUT {
            let window = Instant::now();
            thread::sleep(Duration::from_secs(1));
            let times = self.quiet.times(window, Instant::now());
            let is_as_before = times.iter().zip(&self.idle).all(|(now, idle)| {
                let limit = (idle.p99 * RECOVERED_RATIO).max(Duration::from_millis(20));
                now.calls > 0 && now.not_served == 0 && now.p99 <= limit
            });
            if is_as_before {
                return Some(window - ended);
            }
        }
        None
    }

    fn check(
        &mut self,
        phase: &Phase,
        connections: u64,
        recovered: Option<Duration>,
        memory: &[(String, u64)],
        reports: &[GeneratorReport],
    ) {
        if recovered.is_none() {
            self.failures.push(LoadFailure::NotRecovered(phase.name.clone()));
        }
        for (server, peak) in memory {
            if *peak > memory_bound(connections) {
                let what = format!("{}: {server} had {} MiB", phase.name, peak >> 20);
                self.failures.push(LoadFailure::Memory(what));
            }
        }
        for lost in reports.iter().flat_map(|report| &report.lost) {
            self.failures.push(LoadFailure::Lost(format!("{}: {lost}", phase.name)));
        }
        for server in self.servers.all() {
            if let Some(log) = server.death() {
                let what = format!("{}: {}\n{log}", phase.name, server.name);
                self.failures.push(LoadFailure::Died(what));
            }
        }
    }
}

fn sum(generators: &[RunningGenerator]) -> GeneratorReport {
    let mut sum = GeneratorReport::default();
    for report in generators.iter().map(RunningGenerator::report) {
        sum.open += report.open;
        sum.offered += report.offered;
        sum.served += report.served;
        sum.refused += report.refused;
        sum.failed += report.failed;
    }
    sum
}

fn describe(name: &str, so_far: &GeneratorReport) -> String {
    format!(
        "{name}: {} open, {} offered, {} served, {} refused, {} cut",
        so_far.open, so_far.offered, so_far.served, so_far.refused, so_far.failed
    )
}

/// The service behind the proxy; it ends with the runtime.
pub(crate) async fn start_upstream() -> anyhow::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let orders = AtomicU64::new(0);
    let orders = std::sync::Arc::new(orders);
    let handler = post(async move || {
        let number = orders.fetch_add(1, Ordering::Relaxed);
        (StatusCode::CREATED, format!("order {number}"))
    });
    let service = Router::new().route("/orders", handler);
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(url)
}

/// Writes the record that slow clients ask for.
async fn write_large_record(servers: &LoadedServers) -> anyhow::Result<()> {
    let path = format!("/v1/records/{}", slow_clients::LARGE_RECORD);
    let value = format!("\"{}\"", "x".repeat(slow_clients::LARGE_RECORD_BYTES));
    let mut connection = LoadConnection::to(&servers.nodes[0].address);
    let request = request("PUT", &path, &servers.loud_tokens[0], "", &value);
    let answer = connection.exchange(&request).await?;
    anyhow::ensure!(answer.is_success(), "the large record: {}", answer.status);
    Ok(())
}
