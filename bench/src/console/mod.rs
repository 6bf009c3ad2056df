//! What the console costs: how long each call of a page takes beside many claims, and the CPU time of many consoles that are
//! open while nothing happens.

mod activity;
mod client;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hapax_core::queue::{LeaseRequest, QueueItem, QueueName};
use hapax_core::{ClaimRequest, Key, Operation, Store, Tenant};
use hapax_workload::{MarkdownTable, ProcessGroup, TENANT, cell};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::growth::fill::{FillExpiry, FilledStore, ensure_room};
use crate::growth::keys::KeyStage;
use crate::growth::parse_keys;
use crate::process::{HapaxBinary, ServerProcess, hapax_command};
use crate::store_server::{Engine, StoreServer};
use crate::{parse_seconds, progress, say};
use client::ConsoleClient;

/// How often each call is timed.
const REPEATED: usize = 20;
/// How often the console that shows nothing new asks for the overview.
const OVERVIEW_EVERY: Duration = Duration::from_secs(120);
const LONGEST_PAGE: Duration = Duration::from_millis(150);
const MOST_CPU_PERCENT: f64 = 2.0;
const RETENTION: Duration = Duration::from_secs(86_400);

/// The arguments of `hapax-bench console`.
#[derive(clap::Args)]
pub(crate) struct ConsoleArgs {
    #[command(flatten)]
    hapax: HapaxBinary,
    /// How many settled claims the store has.
    #[arg(long, default_value = "1e6", value_parser = parse_keys)]
    keys: u64,
    /// How many unknown outcomes, locks, dead letters and waiting items there are, of each.
    #[arg(long, default_value_t = 10_000)]
    rows: usize,
    /// How many consoles are open.
    #[arg(long, default_value_t = 50)]
    consoles: usize,
    /// How long the open consoles are watched; the first half of that, there are none.
    #[arg(long, default_value = "120", value_parser = parse_seconds)]
    idle: Duration,
}

/// The calls of each page.
const PAGES: [(&str, &[&str]); 14] = [
    ("Overview", &["/v1/operator/overview"]),
    ("Suppressed", &["/v1/operator/suppressed?limit=50"]),
    ("Unknown outcomes", &["/v1/operator/commands?state=unknown&limit=50&reveal=false"]),
    (
        "Unknown outcomes, of an operation that has none",
        &["/v1/operator/commands?state=unknown&operation=none&limit=50&reveal=false"],
    ),
    (
        "Dead letters",
        &[
            "/v1/operator/queues",
            "/v1/queues/outbox/dead/reasons",
            "/v1/queues/outbox/dead?limit=50&reveal=false",
        ],
    ),
    ("Find a key", &["/v1/operator/keys/command/lost/0?reveal=false"]),
    ("Jobs", &["/v1/operator/jobs?reveal=false"]),
    (
        "Queues",
        &["/v1/operator/queues", "/v1/operator/queues/outbox/waiting?limit=100&reveal=false"],
    ),
    ("Locks", &["/v1/operator/locks?limit=50&reveal=false"]),
    ("Conflicts", &["/v1/operator/conflicts"]),
    ("Streams", &["/v1/operator/streams"]),
    ("LINE", &["/v1/operator/line"]),
    ("Tenants", &["/v1/operator/tenants"]),
    ("Audit", &["/v1/operator/audit?limit=50&reveal=false", "/v1/operator/tasks"]),
];

/// Fills a SQLite file, starts a server on it, measures, and prints the tables.
pub(crate) async fn compare(args: &ConsoleArgs) -> anyhow::Result<()> {
    ensure_room(Engine::Sqlite, args.keys)?;
    let store_server = StoreServer::start(Engine::Sqlite)?;
    let filled = FilledStore::open(&store_server, "hapax").await?;
    let stage = KeyStage { number: 1, count: args.keys };
    filled.fill(stage, FillExpiry::Later).await?;
    fill_rows(&filled.store, args.rows).await?;
    activity::fill(&filled.store).await?;
    let folder = tempfile::tempdir()?;
    let (server, token) = start_server(args, &store_server.url("hapax"), &folder)?;
    let client = ConsoleClient::sign_in(server.address(), &token).await?;
    say(format_args!(
        "## Console\n\n`hapax serve` on a SQLite file with {} settled claims, and {} unknown outcomes, locks, dead letters \
         and waiting items each, with the last hour of {} busy nodes. Each call of a page was made {REPEATED} times; the aim is {} ms.\n",
        args.keys,
        args.rows,
        activity::NODES,
        LONGEST_PAGE.as_millis(),
    ))?;
    say(time_pages(&server, &client).await?)?;
    say(format_args!(
        "CPU time of the server while nothing happens. Each console has its event stream and asks for the overview every {} s; the aim is \
         {MOST_CPU_PERCENT} % of a core.\n",
        OVERVIEW_EVERY.as_secs()
    ))?;
    say(watch_idle(args, &server, &client).await?)?;
    Ok(())
}

/// Unknown outcomes, locks, dead letters and waiting items.
async fn fill_rows(store: &Arc<dyn Store>, rows: usize) -> anyhow::Result<()> {
    let tenant = Tenant::new(TENANT)?;
    let mut claims = JoinSet::new();
    for task in 0..64 {
        let (store, tenant) = (store.clone(), tenant.clone());
        claims.spawn(async move {
            for number in (task..rows).step_by(64) {
                let name = number.to_string();
                let lost = Key::command(&tenant, Operation("lost"), &name)?;
                let short = ClaimRequest::new(Duration::from_millis(1)).retention(RETENTION);
                store.claim(&lost, &short).await?;
                let lock = Key::lock(&tenant, &name)?;
                store.claim(&lock, &ClaimRequest::new(RETENTION).retention(RETENTION)).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = claims.join_next().await {
        done??;
    }
    progress();
    let queue = QueueName::outbox();
    let item = |number: usize| {
        QueueItem::new(&tenant, "orders", format!("payload {number}")).key(&format!("k{number}"))
    };
    let mut left = rows;
    while left > 0 {
        let some = left.min(100);
        let items: Vec<_> = (0..some).map(|nth| item(left - nth)).collect();
        store.enqueue(&queue, &items).await?;
        let take = LeaseRequest::new(some, RETENTION);
        let leased = store.lease(&queue, &take).await?;
        let reason = format!("HTTP {}", 500 + left / 100 % 7);
        let mut burying = JoinSet::new();
        for id in leased.into_iter().map(|leased| leased.item.id) {
            let (store, queue, reason) = (store.clone(), queue.clone(), reason.clone());
            let token = take.token.clone();
            burying.spawn(async move { store.bury(&queue, &token, id, &reason).await.map(drop) });
        }
        while let Some(buried) = burying.join_next().await {
            buried??;
        }
        left -= some;
    }
    for from in (0..rows).step_by(100) {
        let items: Vec<_> = (from..rows.min(from + 100)).map(item).collect();
        store.enqueue(&queue, &items).await?;
    }
    progress();
    Ok(())
}

/// A server with one token; its secret.
fn start_server(
    args: &ConsoleArgs,
    store: &str,
    folder: &TempDir,
) -> anyhow::Result<(ServerProcess, String)> {
    let hapax = args.hapax.path()?;
    let made = Command::new(&hapax)
        .args(["token", "new", "--name", "bench", "--tenant", TENANT, "--scope", "admin"])
        .env_clear()
        .current_dir(folder.path())
        .output()?;
    let made = String::from_utf8(made.stdout)?;
    let (token, rule) = made.split_once("\n\n").context("`hapax token new` prints a token")?;
    std::fs::write(folder.path().join("hapax.toml"), rule)?;
    let mut command = hapax_command(Command::new(hapax), "serve", store, folder.path());
    // What operators do is logged at every level.
    command.stderr(std::fs::File::create(folder.path().join("log"))?);
    Ok((ServerProcess::start_announced(&mut command)?, token.trim().to_owned()))
}

async fn time_pages(
    server: &ServerProcess,
    client: &ConsoleClient,
) -> anyhow::Result<MarkdownTable> {
    let mut table = MarkdownTable::default();
    let group = server.processes();
    for (page, calls) in PAGES {
        let before = group.cpu_time();
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..REPEATED {
            let mut page_time = Duration::ZERO;
            bytes = 0;
            for call in calls {
                let (took, size) = client.get(call).await?;
                page_time += took;
                bytes += size;
            }
            times.push(page_time);
        }
        // On a busy machine this tells what the page itself takes.
        let cpu_time = group.cpu_time().saturating_sub(before) / u32::try_from(REPEATED)?;
        times.sort_unstable();
        let (p50, longest) = (times[REPEATED / 2], times[REPEATED - 1]);
        table.row([
            ("page", page.to_owned()),
            ("calls", calls.len().to_string()),
            ("p50", cell::latency(p50)),
            ("longest", cell::latency(longest)),
            ("CPU time", cell::latency(cpu_time)),
            ("bytes", bytes.to_string()),
            ("aim", if longest <= LONGEST_PAGE { "met" } else { "NOT met" }.to_owned()),
        ]);
        progress();
    }
    Ok(table)
}

async fn watch_idle(
    args: &ConsoleArgs,
    server: &ServerProcess,
    client: &ConsoleClient,
) -> anyhow::Result<MarkdownTable> {
    let mut table = MarkdownTable::default();
    for (consoles, time) in [(0, args.idle / 2), (args.consoles, args.idle)] {
        let mut open = JoinSet::new();
        let mut streams = Vec::new();
        for nth in 0..consoles {
            streams.push(client.follow().await?);
            let client = client.clone();
            // Spread over the period, as the consoles of different people are.
            let first = OVERVIEW_EVERY * u32::try_from(nth)? / u32::try_from(consoles)?;
            let begun = Instant::now();
            open.spawn(async move {
                for turn in 0.. {
                    sleep_until(begun + first + OVERVIEW_EVERY * turn).await;
                    client.get("/v1/operator/overview").await?;
                }
                anyhow::Ok(())
            });
        }
        // The cost of opening the consoles is not measured.
        sleep(Duration::from_secs(5)).await;
        let group: ProcessGroup = server.processes();
        let (before, begun) = (group.cpu_time(), Instant::now());
        sleep(time).await;
        let used = group.cpu_time().saturating_sub(before);
        let percent = 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64();
        anyhow::ensure!(streams.iter().all(|stream| !stream.is_finished()), "a stream has ended");
        if let Some(ended) = open.try_join_next() {
            ended??;
        }
        streams.iter().for_each(tokio::task::JoinHandle::abort);
        let aim = if percent < MOST_CPU_PERCENT { "met" } else { "NOT met" };
        table.row([
            ("open consoles", consoles.to_string()),
            ("watched for", format!("{} s", time.as_secs())),
            ("CPU of a core", format!("{percent:.2} %")),
            ("resident", format!("{} MB", group.resident_bytes() / 1_000_000)),
            ("aim", if consoles == 0 { "" } else { aim }.to_owned()),
        ]);
        progress();
    }
    Ok(table)
}
