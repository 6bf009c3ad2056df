//! Writers that roll back or commit late, relays that are killed, a sink that fails and cuts: every
//! committed row is delivered, no other ever, in order per key; behind an inbox every effect happens
//! once. A checker reads the recorded history.

mod checker;
mod planted;
mod sink;
mod writers;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax_testkit::Postgres;

use checker::{History, Row, violations};
use sink::SinkFaults;

use crate::cli_support::run;
use crate::soak_bus::random::Random;
use crate::support::{KillOnDrop, eventually, hapax};

fn start_relay(from: &str, sink: &str, faults: SinkFaults) -> KillOnDrop {
    // A killed relay's rows are free again soon; without kills no slow machine lets a lease lapse.
    let lease = if faults == SinkFaults::None { "60s" } else { "2s" };
    let to = format!("http://{sink}/hook");
    let child = hapax()
        .args(["relay", "--from", from, "--to", &to, "--allow-private"])
        .args(["--lease", lease, "--backoff", "20ms", "--backoff-max", "200ms"])
        // A slow message is not sent again.
        .args(["--max-attempts", "1000", "--store-timeout", "20s", "--send-timeout", "30s"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    KillOnDrop(child.expect("hapax starts"))
}

/// Kills and restarts one relay repeatedly, until `stop`.
fn kill_again_and_again(from: String, sink: String, stop: Arc<AtomicBool>) {
    let mut random = Random::new(17);
    while !stop.load(Ordering::SeqCst) {
        let _relay = start_relay(&from, &sink, SinkFaults::Random);
        std::thread::sleep(Duration::from_millis(200 + random.below(500) as u64));
    }
}

/// Rows go from the outbox into the sink, behind which the inbox and the effects are in PostgreSQL.
async fn record(outbox: &Outbox, database: &str, faults: SinkFaults) -> History {
    let (sink, deliveries) = sink::listen(database, faults).await;
    let from = outbox.url();
    let first = start_relay(&from, &sink, faults);
    let stop = Arc::new(AtomicBool::new(false));
    let killer = (faults == SinkFaults::Random).then(|| {
        let (from, sink, stop) = (from.clone(), sink.clone(), stop.clone());
        std::thread::spawn(move || kill_again_and_again(from, sink, stop))
    });
    let second = (faults == SinkFaults::None).then(|| start_relay(&from, &sink, faults));
    let rows = outbox.write(25 * hapax_testkit::scale()).await;
    stop.store(true, Ordering::SeqCst);
    let committed = rows.iter().filter(|row| row.committed).count();
    let client = writers::client(database).await;
    let mut effects: Vec<String> = Vec::new();
    let all = async {
        while effects.len() < committed {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let found = client.query("SELECT id FROM effects", &[]).await.expect("effects");
            effects = found.iter().map(|row| row.get(0)).collect();
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(120), all).await;
    drop((first, second));
    if let Some(killer) = killer {
        killer.join().expect("the killer lives");
    }
    let deliveries = deliveries.lock().expect("no panic").clone();
    History { rows, deliveries, effects, undisturbed: faults == SinkFaults::None }
}

/// Where the writers write.
enum Outbox {
    Postgres(String),
    Sqlite(std::path::PathBuf),
}

impl Outbox {
    fn url(&self) -> String {
        match self {
            Self::Postgres(url) => url.clone(),
            Self::Sqlite(file) => format!("sqlite:{}", file.display()),
        }
    }

    async fn write(&self, rows_each: u32) -> Vec<Row> {
        match self {
            Self::Postgres(url) => writers::write_to_postgres(url, rows_each).await,
            Self::Sqlite(file) => writers::write_to_sqlite(file, rows_each).await,
        }
    }
}

async fn check(faults: SinkFaults, outbox: impl Fn(&str) -> Outbox) {
    let postgres = Postgres::start();
    let url = postgres.url();
    let outbox = outbox(&url);
    // The writers and the inbox need their tables before any relay has made them.
    for store in [&url, &outbox.url()] {
        eventually("the tables", || {
            run(hapax().args(["doctor", "--store", store, "--migrate"])).code() == 0
        });
    }
    let history = record(&outbox, &url, faults).await;
    let wrong = violations(&history);
    assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    assert!(history.rows.iter().any(|row| !row.committed));
}

fn postgres(url: &str) -> Outbox {
    Outbox::Postgres(url.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_soak_with_kills_loses_and_doubles_nothing() {
    check(SinkFaults::Random, postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_soak_two_quiet_relays_send_nothing_twice() {
    check(SinkFaults::None, postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_soak_over_a_sqlite_outbox() {
    let folder = tempfile::tempdir().expect("a folder");
    for (faults, name) in [(SinkFaults::Random, "faults.db"), (SinkFaults::None, "no-faults.db")] {
        check(faults, |_| Outbox::Sqlite(folder.path().join(name))).await;
    }
}
