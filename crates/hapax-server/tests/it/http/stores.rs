//! The server on real stores, and on real stores that fail.

use std::time::{Duration, Instant};

use hapax_testkit::{Postgres, Redis};
use serde_json::json;

use crate::support::server::{Server, Setup};
use crate::support::{eventually, has};

/// With the default timeout of one store call.
fn limited(url: &str) -> Server {
    Setup::on(url).flags(&["--store-timeout", "2s"]).start()
}

/// On a busy machine a healthy store may exceed the default timeout now and then.
fn a_lock_is_taken(server: &Server, key: &str) {
    eventually("a lock is taken", || server.post(&format!("/v1/locks/{key}")).status() == 201);
}

/// One call of each feature.
const CALLS: [(&str, &str); 8] = [
    ("POST", "/v1/locks/k"),
    ("GET", "/v1/locks/k"),
    ("GET", "/v1/records/k"),
    ("DELETE", "/v1/records/k"),
    ("POST", "/v1/commands/o/k"),
    ("GET", "/v1/commands/o/k"),
    ("GET", "/v1/operator/commands"),
    ("DELETE", "/v1/operator/commands/o/k"),
];

/// Every request fails in time: within 4.5 s plus what a busy machine adds.
fn nothing_is_answered(server: &Server) {
    for (method, path) in CALLS {
        let asked = Instant::now();
        let answer = server.ask(method, path).is(503, "store-unavailable");
        // A delete without a version may have happened where the store was asked, and would undo what
        // was written since.
        let retryable = (method, path) != ("DELETE", "/v1/records/k");
        assert!(!retryable || answer.json()["retryable"] == true, "{method} {path}");
        let took = asked.elapsed();
        assert!(took < Duration::from_secs(25), "{method} {path}: {took:?}");
    }
}

#[test]
fn start_waits_for_a_store_that_is_not_there_yet() {
    let redis = Redis::start();
    redis.kill();
    let server = limited(&redis.url());
    let ready = server.get("/readyz").send();
    assert_eq!(ready.status, 503);
    assert!(!ready.json()["reason"].as_str().unwrap().is_empty());
    assert_eq!(server.get("/healthz").status(), 200);
    nothing_is_answered(&server);
    assert_eq!(server.get("/").status(), 200, "the console loads, to say what is wrong");
    assert!(server.metrics().contains("hapax_store_up 0"));
    redis.restart();
    server.is_ready(true);
    a_lock_is_taken(&server, "k");
}

#[test]
fn hanging_store_is_reported_in_time_and_recovers() {
    let redis = Redis::start();
    let server = limited(&redis.url());
    a_lock_is_taken(&server, "before");
    redis.stop();
    nothing_is_answered(&server);
    server.is_ready(false);
    redis.cont();
    server.is_ready(true);
    a_lock_is_taken(&server, "after");
}

#[test]
fn refused_postgres_credentials_end_the_process() {
    let postgres = Postgres::start();
    postgres.psql("CREATE ROLE guarded LOGIN PASSWORD 'right'");
    let rules = "host all guarded all scram-sha-256\nlocal all all trust\nhost all all all trust\n";
    std::fs::write(postgres.psql("SHOW hba_file"), rules).unwrap();
    // A reload happens some time after the request, and nothing shows when.
    postgres.restart();
    let url = format!("postgres://guarded:wr0ng@127.0.0.1:{}/postgres", postgres.port());
    let message = Setup::on(&url).refused();
    assert!(message.contains("refused this user") && !message.contains("wr0ng"), "{message}");
}

#[test]
fn refused_redis_credentials_end_the_process() {
    let redis = Redis::with(&["--requirepass", "right"]);
    let url = format!("redis://:wr0ng@127.0.0.1:{}", redis.port());
    let message = Setup::on(&url).refused();
    assert!(message.contains("refused this user") && !message.contains("wr0ng"), "{message}");
}

const EVICTING: [&str; 4] = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];

#[test]
fn store_that_breaks_a_promise_is_refused() {
    let redis = Redis::with(&EVICTING);
    has(&Setup::on(&redis.url()).refused(), &["noeviction"]);
}

#[test]
fn late_store_is_examined_when_it_comes() {
    let redis = Redis::with(&EVICTING);
    redis.kill();
    let server = Setup::on(&redis.url()).start();
    redis.restart();
    eventually("it was examined", || server.get("/readyz").send().text().contains("noeviction"));
    nothing_is_answered(&server);
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.is_ready(true);
    assert_eq!(server.post("/v1/locks/k").status(), 201);
}

#[test]
fn fault_13_removed_wal_turns_readyz_red_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hapax.db");
    let server = Setup::on(&format!("sqlite:{}", file.display())).start();
    assert_eq!(server.put("/v1/records/k").json("1").status(), 201);
    std::fs::remove_file(folder.path().join("hapax.db-wal")).unwrap();
    server.put("/v1/records/k").json("2").is(503, "store-unavailable");
    eventually("the file is named", || {
        let ready = server.get("/readyz").send();
        ready.status == 503 && ready.text().contains("hapax.db-wal")
    });
    server.get("/v1/records/k").is(503, "store-unavailable");
}

#[test]
fn foreign_locks_count_and_foreign_records_are_read() {
    let redis = Redis::start();
    let server = Setup::on(&redis.url()).start();
    redis.cli(&["SET", "processing:user:U1", "1", "EX", "60"]);
    server.post("/v1/locks/processing:user:U1").is(409, "lock-held");
    let seen = server.get("/v1/locks/processing:user:U1").send().json();
    assert_eq!((&seen["held"], &seen["fence"]), (&json!(true), &json!(null)));
    redis.cli(&["SET", "user:U1:last_transaction", "{\"amount\": 100}"]);
    let record = server.get("/v1/records/user:U1:last_transaction").send();
    assert_eq!(record.text(), "{\"amount\": 100}");
    redis.cli(&["SET", "user:U2:last_transaction", "not JSON"]);
    server.get("/v1/records/user:U2:last_transaction").is(500, "record-corrupt");
    server.patch("/v1/records/user:U2:last_transaction").json("{}").is(500, "record-corrupt");
}

#[test]
fn redis_verbatim_keys_are_a_setting() {
    let redis = Redis::start();
    let server = Setup::on(&redis.url()).flags(&["--redis-verbatim", "mine:*"]).start();
    assert_eq!(server.put("/v1/records/mine:1").json("1").status(), 201);
    assert_eq!(server.put("/v1/records/user:U1:last_transaction").json("1").status(), 201);
    assert_eq!(redis.cli(&["GET", "mine:1"]), "1");
    assert_eq!(redis.cli(&["EXISTS", "user:U1:last_transaction"]), "0");
}

#[test]
fn operator_decides_on_redis_and_postgres() {
    let (redis, postgres) = (Redis::start(), Postgres::start());
    for url in [redis.url(), postgres.url()] {
        let server = Setup::on(&url).start();
        server.is_ready(true);
        let begin = |key: &str| server.post(&format!("/v1/commands/POST%20%2Fa/{key}"));
        for key in ["ran", "did-not"] {
            assert_eq!(begin(key).json(r#"{"lease_ms":1}"#).status(), 201);
        }
        let unknown = || server.get("/v1/operator/commands?state=unknown").send().json();
        eventually("both are listed", || unknown()["commands"].as_array().unwrap().len() == 2);
        let ruled = server.put("/v1/operator/commands/POST%20%2Fa/ran").json("{\"status\":204}");
        assert_eq!(ruled.status(), 200);
        assert_eq!(begin("ran").send().json()["status"], 204);
        assert_eq!(server.delete("/v1/operator/commands/POST%20%2Fa/did-not").status(), 204);
        assert_eq!(begin("did-not").send().json()["attempt"], 1);
        assert_eq!(unknown()["commands"].as_array().unwrap().len(), 0);
        assert_eq!(server.post("/v1/operator/sweep").status(), 200);
    }
}

#[test]
fn server_runs_on_postgres() {
    let postgres = Postgres::start();
    let server = Setup::on(&postgres.url()).start();
    server.is_ready(true);
    server.lock("k");
    assert_eq!(server.post("/v1/locks/k").status(), 409);
    assert_eq!(server.put("/v1/records/k").json("{\"a\":\"\\u0000\"}").status(), 201);
    assert_eq!(server.get("/v1/records/k").send().text(), "{\"a\":\"\\u0000\"}");
    let token = server.post("/v1/commands/o/k").send().token();
    let done = json!({"token": token, "status": 200, "body_base64": "AP8="});
    assert_eq!(server.put("/v1/commands/o/k").json(done).status(), 200);
    assert_eq!(server.post("/v1/commands/o/k").send().json()["body_base64"], "AP8=");
}

/// The database has a clock of its own, which the test can set: a function that hides PostgreSQL's.
#[test]
fn store_clock_step_is_counted_and_turns_readyz_red() {
    let postgres = Postgres::start();
    let url = postgres.database("stepped");
    let sql = "CREATE SCHEMA clock; CREATE TABLE clock.step (by interval); \
               INSERT INTO clock.step VALUES ('0'); \
               CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
               'SELECT pg_catalog.clock_timestamp() + by FROM clock.step'; \
               ALTER DATABASE stepped SET search_path = public, clock, pg_catalog";
    postgres.psql_in("stepped", sql);
    let server = Setup::on(&url).start();
    server.is_ready(true);
    let jumps = |server: &Server| {
        let metrics = server.metrics();
        let mut lines = metrics.lines();
        let line = lines.find(|line| line.starts_with("hapax_clock_jumps_total{clock=\"store\"}"));
        line.is_some_and(|line| !line.ends_with(" 0"))
    };
    assert!(!jumps(&server));
    // Again and again, because the server has to have read the clock once before a step.
    eventually("the step is reported", || {
        postgres.psql_in("stepped", "UPDATE clock.step SET by = by + '1 hour'");
        let ready = server.get("/readyz").send();
        ready.status == 503 && ready.text().contains("clock of the store's server was set by")
    });
    assert!(jumps(&server));
}
