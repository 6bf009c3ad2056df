//! `hapax relay`, the real binary between real servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cli_support::{hapax, run};
use crate::support::http::HttpRequest;
use crate::support::store::TestStore;
use crate::support::{HapaxProcess, WAIT_TIMEOUT, eventually, has};
use hapax::sqlite::rusqlite::Connection;
use hapax_testkit::{HttpStub, Postgres, RabbitMq, Redis, StubAnswer, free_port};
use serde_json::Value;

/// A running relay, killed when dropped.
fn start(from: &str, to: &str, flags: &[&str]) -> HapaxProcess {
    let mut command = hapax();
    command
        .args(["relay", "--from", from, "--to", to, "--config", "/dev/null"])
        .args(["--backoff", "20ms", "--backoff-max", "200ms", "--poll", "50ms"])
        // Long timeouts, so that a busy machine fails no call.
        .args(["--store-timeout", "20s", "--send-timeout", "30s"])
        .args(flags);
    HapaxProcess::start(&mut command)
}

fn entries(redis: &Redis) -> BTreeSet<String> {
    let entries = redis.cli(&["XRANGE", "orders", "-", "+"]);
    let lines: Vec<_> = entries.lines().collect();
    lines.windows(2).filter(|pair| pair[0] == "payload").map(|pair| pair[1].to_owned()).collect()
}

/// An application's own connection to the outbox.
fn shop(store: &TestStore) -> Connection {
    Connection::open(&store.url()["sqlite:".len()..]).unwrap()
}

#[test]
fn relay_sends_plain_sql_rows_but_not_rolled_back_ones() {
    let (postgres, redis) = (Postgres::start(), Redis::start());
    let (from, to) = (postgres.url(), redis.url());
    let first = start(&from, &to, &["--lease", "1s"]);
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
    eventually("both rows", || entries(&redis).len() == 2);
    // A second relay goes on where the killed one stopped.
    postgres.psql(&(3..200).map(insert).collect::<String>());
    drop(first);
    let mut second = start(&from, &to, &["--lease", "1s"]);
    eventually("all rows", || entries(&redis).len() == 199);
    assert!(!entries(&redis).contains("never"));
    second.stop();
}

#[test]
fn relay_admin_shows_store_sink_and_queue() {
    let redis = Redis::start();
    redis.cli(&["SET", "orders", "no stream"]);
    let store = TestStore::sqlite();
    let admin = format!("127.0.0.1:{}", free_port());
    let flags = ["--admin", &admin, "--max-attempts", "2"];
    let mut relay = start(&store.url(), &redis.url(), &flags);
    let get = |path: &str| {
        let answer = HttpRequest::new(&admin, "GET", path).send();
        (answer.status, answer.text())
    };
    assert_eq!(get("/healthz").0, 200);
    eventually("ready", || get("/readyz").0 == 200);
    let shop = shop(&store);
    // The relay writes to the same file, so wait for its locks.
    shop.busy_timeout(WAIT_TIMEOUT).unwrap();
    let sql = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'k', 'x')";
    shop.execute(sql, []).unwrap();
    let queue = || serde_json::from_str::<Value>(&get("/v1/queues/outbox").1).unwrap();
    eventually("the dead letter", || queue()["dead"] == 1);
    let dead: Value = serde_json::from_str(&get("/v1/queues/outbox/dead").1).unwrap();
    assert_eq!(dead["items"][0]["attempts"], 2);
    assert!(dead["items"][0]["reason"].as_str().unwrap().contains("WRONGTYPE"), "{dead}");
    assert_eq!(get("/v1/locks/k").0, 404, "the rest of the API is the server's");

    redis.cli(&["DEL", "orders"]);
    let id = dead["items"][0]["id"].as_str().unwrap();
    let requeue = format!("/v1/queues/outbox/dead/{id}/requeue");
    let forwarded = HttpRequest::new(&admin, "POST", &requeue).header("Via", "1.1 nginx");
    forwarded.is(403, "forwarded-request");
    assert_eq!(HttpRequest::new(&admin, "POST", &requeue).status(), 204);
    eventually("it arrives", || entries(&redis).contains("x"));
    // Redis has the row before the relay gets the answer and counts it.
    eventually("it is counted", || {
        let metrics = get("/metrics").1;
        let delivered = "hapax_relay_sent_total{sink=\"redis\",result=\"delivered\"} 1";
        metrics.contains("hapax_relay_sink_up{sink=\"redis\"} 1") && metrics.contains(delivered)
    });
    redis.kill();
    // The sink is tried only when there is a row to send.
    shop.execute(sql, []).unwrap();
    eventually("not ready", || get("/readyz").0 == 503);
    relay.stop();
}

#[test]
fn fault_07_relay_is_not_ready_while_its_webhook_takes_nothing() {
    let is_away = Arc::new(AtomicBool::new(true));
    let away = is_away.clone();
    let webhook = HttpStub::start(move |_| {
        let status = if away.load(Ordering::SeqCst) { "503 Later" } else { "204 Done" };
        StubAnswer::Respond(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"))
    });
    let store = TestStore::quick_sqlite();
    run(hapax().args(["migrate", "--store", &store.url()])).ok();
    let insert = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'k', 'x')";
    shop(&store).execute(insert, []).unwrap();
    let admin = format!("127.0.0.1:{}", free_port());
    let flags = ["--admin", &admin, "--max-attempts", "2", "--allow-private"];
    let mut relay = start(&store.url(), &webhook.url("/"), &flags);
    let get = |path: &str| {
        let answer = HttpRequest::new(&admin, "GET", path).send();
        (answer.status, answer.text())
    };
    eventually("many tries", || webhook.requests().len() >= 6);
    let (status, ready) = get("/readyz");
    assert_eq!((status, ready.contains("503")), (503, true), "{ready}");
    has(&get("/v1/queues/outbox").1, &["\"dead\":0"]);
    is_away.store(false, Ordering::SeqCst);
    eventually("ready", || get("/readyz").0 == 200);
    relay.stop();
}

/// The driver would log a returned message with its content.
#[test]
fn relay_log_hides_returned_messages() {
    let rabbitmq = RabbitMq::start();
    let store = TestStore::quick_sqlite();
    run(hapax().args(["migrate", "--store", &store.url()])).ok();
    let row = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('nowhere', 'person', 'x')";
    shop(&store).execute(row, []).unwrap();
    let flags = ["--max-attempts", "1", "--log-level", "trace"];
    let mut relay = start(&store.url(), &rabbitmq.url(), &flags);
    eventually("the dead letter", || relay.log().contains("unroutable"));
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
    has(&run(hapax().args(["relay", "--config", "/dev/null"])).failed(1), &["--from is needed"]);
}
