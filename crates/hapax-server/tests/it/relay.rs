//! `hapax relay`, the real binary between real servers.

use std::collections::BTreeSet;

use crate::cli_support::{PATIENCE, folder, hapax, run};
use crate::support::HapaxProcess;
use crate::support::http::HttpRequest;
use hapax::sqlite::rusqlite::Connection;
use hapax_testkit::{Postgres, RabbitMq, Redis, free_port, wait_for};
use rustix::process::Signal;
use serde_json::Value;

/// Long timeouts, so that a busy machine fails no call.
const PATIENT: [&str; 4] = ["--store-timeout", "20s", "--send-timeout", "30s"];

/// A running relay, killed when dropped.
struct Relay(HapaxProcess);

impl Relay {
    fn start(from: &str, to: &str, flags: &[&str]) -> Self {
        let mut command = hapax();
        command
            .args(["relay", "--from", from, "--to", to, "--config", "/dev/null"])
            .args(["--backoff", "20ms", "--backoff-max", "200ms", "--poll", "50ms"])
            .args(PATIENT)
            .args(flags);
        Self(HapaxProcess::start(&mut command))
    }

    /// Stops the relay with `SIGTERM`, and returns its log.
    fn stop(mut self) -> String {
        self.0.signal(Signal::TERM);
        let (status, log) = self.0.wait();
        assert!(status.success(), "{status}: {log}");
        log
    }
}

fn entries(redis: &Redis) -> BTreeSet<String> {
    let entries = redis.cli(&["XRANGE", "orders", "-", "+"]);
    let lines: Vec<_> = entries.lines().collect();
    lines.windows(2).filter(|pair| pair[0] == "payload").map(|pair| pair[1].to_owned()).collect()
}

#[test]
fn relay_sends_plain_sql_rows_but_not_rolled_back_ones() {
    let (postgres, redis) = (Postgres::start(), Redis::start());
    let (from, to) = (postgres.url(), redis.url());
    let first = Relay::start(&from, &to, &["--lease", "1s"]);
    // The relay created the table.
    let insert = |n: u32| {
        format!(
            "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'k{}', 'row-{n}'::bytea);",
            n % 3
        )
    };
    postgres.psql(&format!("BEGIN; {} {} COMMIT;", insert(1), insert(2)));
    let never = insert(0).replace("row-0", "never");
    postgres.psql(&format!("BEGIN; {never} ROLLBACK;"));
    wait_for("both rows", PATIENCE, || (entries(&redis).len() == 2).then_some(()));
    // A second relay goes on where the killed one stopped.
    postgres.psql(&(3..200).map(insert).collect::<String>());
    drop(first);
    let second = Relay::start(&from, &to, &["--lease", "1s"]);
    wait_for("all rows", PATIENCE, || (entries(&redis).len() == 199).then_some(()));
    assert!(!entries(&redis).contains("never"));
    second.stop();
}

#[test]
fn relay_admin_shows_store_sink_and_queue() {
    let redis = Redis::start();
    redis.cli(&["SET", "orders", "no stream"]);
    let folder = tempfile::tempdir().unwrap();
    let from = format!("sqlite:{}", folder.path().join("a.db").display());
    let admin = format!("127.0.0.1:{}", free_port());
    let flags = ["--admin", &admin, "--max-attempts", "2"];
    let relay = Relay::start(&from, &redis.url(), &flags);
    let get = |path: &str| {
        let answer = HttpRequest::new(&admin, "GET", path).send();
        (answer.status, answer.text())
    };
    assert_eq!(get("/healthz").0, 200);
    wait_for("ready", PATIENCE, || (get("/readyz").0 == 200).then_some(()));
    let shop = Connection::open(folder.path().join("a.db")).unwrap();
    // The relay writes to the same file, so wait for its locks.
    shop.busy_timeout(PATIENCE).unwrap();
    let sql = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'k', 'x')";
    shop.execute(sql, []).unwrap();
    let queue = || serde_json::from_str::<Value>(&get("/v1/queues/outbox").1).unwrap();
    wait_for("the dead letter", PATIENCE, || (queue()["dead"] == 1).then_some(()));
    let dead: Value = serde_json::from_str(&get("/v1/queues/outbox/dead").1).unwrap();
    assert_eq!(dead["items"][0]["attempts"], 2);
    assert!(dead["items"][0]["reason"].as_str().unwrap().contains("WRONGTYPE"), "{dead}");
    assert_eq!(get("/v1/locks/k").0, 404, "the rest of the API is the server's");

    redis.cli(&["DEL", "orders"]);
    let id = dead["items"][0]["id"].as_str().unwrap();
    let requeue = format!("/v1/queues/outbox/dead/{id}/requeue");
    assert_eq!(HttpRequest::new(&admin, "POST", &requeue).status(), 204);
    wait_for("it arrives", PATIENCE, || entries(&redis).contains("x").then_some(()));
    // Redis has the row before the relay gets the answer and counts it.
    wait_for("it is counted", PATIENCE, || {
        let metrics = get("/metrics").1;
        let delivered = "hapax_relay_sent_total{sink=\"redis\",result=\"delivered\"} 1";
        let up = "hapax_relay_sink_up{sink=\"redis\"} 1";
        (metrics.contains(up) && metrics.contains(delivered)).then_some(())
    });
    redis.kill();
    // The sink is tried only when there is a row to send.
    shop.execute(sql, []).unwrap();
    wait_for("not ready", PATIENCE, || (get("/readyz").0 == 503).then_some(()));
    relay.stop();
}

/// The driver would log a returned message with its content.
#[test]
fn relay_log_hides_returned_messages() {
    let rabbitmq = RabbitMq::start();
    let folder = folder();
    let file = folder.path().join("a.db");
    let from = format!("sqlite:{}", file.display());
    run(hapax().args(["doctor", "--migrate", "--store", &from])).ok();
    let shop = Connection::open(&file).unwrap();
    let row = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('nowhere', 'person', 'x')";
    shop.execute(row, []).unwrap();
    let flags = ["--max-attempts", "1", "--log-level", "trace"];
    let relay = Relay::start(&from, &rabbitmq.url(), &flags);
    wait_for("the dead letter", PATIENCE, || relay.0.log().contains("unroutable").then_some(()));
    let log = relay.stop();
    assert!(!log.contains("nowhere") && !log.contains("Delivery"), "{log}");
}

#[test]
fn relay_wrong_settings_are_errors_at_start() {
    let relay = |from: &str, to: &str| {
        let mut command = hapax();
        command.args(["relay", "--config", "/dev/null", "--from", from, "--to", to]);
        run(&mut command).failed(1)
    };
    let message = relay("memory:", "ftp://user:secret@host");
    assert!(message.contains("nats://") && message.contains("stdout"), "{message}");
    assert!(!message.contains("secret"), "{message}");
    assert!(relay("memory:", "http://127.0.0.1/").contains("--allow-private"));
    assert!(relay("memory:", "amqp://[").contains("amqp://user:password@host"));
    assert!(relay("ftp://x", "stdout").contains("sqlite:"));
    let nothing = run(hapax().args(["relay", "--config", "/dev/null"])).failed(1);
    assert!(nothing.contains("--from is needed"), "{nothing}");
}
