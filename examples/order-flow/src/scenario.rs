//! The whole scenario: servers, services, orders with duplicates, and a thread that kills services.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hapax_testkit::{Nats, Postgres, free_port};

use crate::service_process::ServiceProcess;

/// Number of concurrent clients.
const CLIENTS: usize = 8;
/// Time limit for each phase; a run that exceeds it has lost an order.
const LIMIT: Duration = Duration::from_secs(600);

struct World {
    postgres: Postgres,
    nats: Nats,
    services: Mutex<[ServiceProcess; 3]>,
    address: String,
}

impl World {
    fn start() -> anyhow::Result<Self> {
        let (postgres, nats) = (Postgres::start(), Nats::start());
        let (shop, billing) = (postgres.database("shop"), postgres.database("billing"));
        let address = format!("127.0.0.1:{}", free_port());
        let services = [
            ServiceProcess::start(&["orders", "--listen", &address, "--database", &shop])?,
            ServiceProcess::start(&["relay", "--database", &shop, "--nats", &nats.url()])?,
            ServiceProcess::start(&["billing", "--nats", &nats.url(), "--database", &billing])?,
        ];
        Ok(Self { postgres, nats, services: Mutex::new(services), address })
    }

    /// Kills one of the services or servers, chosen by `turn`, and restarts it after a pause.
    fn kill(&self, turn: usize) -> anyhow::Result<&'static str> {
        let mut services = self.services.lock().expect("no panic");
        let name = ["orders", "relay", "billing", "NATS", "PostgreSQL"][turn % 5];
        match turn % 5 {
            3 => self.nats.kill(),
            4 => self.postgres.kill(),
            service => services[service].kill(),
        }
        std::thread::sleep(Duration::from_millis(150));
        match turn % 5 {
            3 => self.nats.restart(),
            4 => self.postgres.restart(),
            service => services[service].restart()?,
        }
        services.iter_mut().try_for_each(ServiceProcess::restart_if_ended)?;
        Ok(name)
    }

    fn count(&self, database: &str, table: &str) -> u64 {
        let sql = format!("SELECT count(*) FROM {table}");
        self.postgres.psql_in(database, &sql).trim().parse().unwrap_or(0)
    }

    /// The number of invoices; 0 until billing has created its table.
    fn invoices(&self) -> u64 {
        let there = "SELECT to_regclass('invoices') IS NOT NULL";
        if self.postgres.psql_in("billing", there) != "t" {
            return 0;
        }
        self.count("billing", "invoices")
    }
}

/// Runs the scenario, and fails if the counts differ.
pub(crate) async fn run(orders: usize) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(move || run_blocking(orders)).await?
}

fn run_blocking(orders: usize) -> anyhow::Result<()> {
    say(&format!("starting PostgreSQL, NATS, orders, relay and billing; then {orders} orders"))?;
    let world = Arc::new(World::start()?);
    let done = Arc::new(AtomicBool::new(false));
    let killing = std::thread::spawn({
        let (world, done) = (world.clone(), done.clone());
        move || kill_until(&world, &done)
    });
    let requests = send(&world.address, orders)?;
    done.store(true, Ordering::SeqCst);
    let kills = killing.join().ok().context("the killing thread panicked")??;

    let until = Instant::now() + LIMIT;
    while world.invoices() < orders as u64 && Instant::now() < until {
        world
            .services
            .lock()
            .expect("no panic")
            .iter_mut()
            .try_for_each(ServiceProcess::restart_if_ended)?;
        std::thread::sleep(Duration::from_millis(200));
    }
    report(&world, orders, requests, kills)
}

fn kill_until(world: &World, done: &AtomicBool) -> anyhow::Result<usize> {
    let mut kills = 0;
    while !done.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(700));
        let name = world.kill(kills)?;
        kills += 1;
        say(&format!("  killed {name}"))?;
    }
    Ok(kills)
}

/// Sends every order until it is answered, every third one twice concurrently; returns the number
/// of requests.
fn send(address: &str, orders: usize) -> anyhow::Result<usize> {
    let (next, requests) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let until = Instant::now() + LIMIT;
    let client = || -> anyhow::Result<()> {
        loop {
            let order = next.fetch_add(1, Ordering::SeqCst);
            if order >= orders {
                return Ok(());
            }
            let copies = if order.is_multiple_of(3) { 2 } else { 1 };
            std::thread::scope(|scope| {
                let copies: Vec<_> = (0..copies)
                    .map(|_| scope.spawn(|| place(address, order, &requests, until)))
                    .collect();
                copies.into_iter().try_for_each(|copy| copy.join().expect("no panic"))
            })?;
        }
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no panic"))
    })?;
    Ok(requests.into_inner())
}

fn place(address: &str, order: usize, count: &AtomicUsize, until: Instant) -> anyhow::Result<()> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(15)))
        .http_status_as_error(false)
        .build()
        .into();
    while Instant::now() < until {
        count.fetch_add(1, Ordering::SeqCst);
        let request = agent
            .post(format!("http://{address}/orders"))
            .header("Idempotency-Key", format!("\"checkout-{order}\""))
            .header("Content-Type", "application/json");
        let sent = request.send(format!(r#"{{"item":"tea {order}"}}"#));
        if sent.is_ok_and(|answer| answer.status() == 201) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    anyhow::bail!("order {order} was never answered")
}

fn report(world: &World, asked: usize, requests: usize, kills: usize) -> anyhow::Result<()> {
    let orders = world.count("shop", "orders");
    let messages = world.count("shop", "hapax_outbox");
    let invoices = world.count("billing", "invoices");
    let billed = world.count("billing", "(SELECT DISTINCT order_id FROM invoices) AS billed");
    say(&format!(
        "\n{kills} kills, {requests} requests for {asked} orders\n\
         orders   {orders}\nmessages {messages}\ninvoices {invoices} for {billed} orders"
    ))?;
    let all = [orders, messages, invoices, billed];
    ensure!(all.iter().all(|count| *count == asked as u64), "the counts differ");
    say("every order became one invoice")?;
    Ok(())
}

fn say(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}
