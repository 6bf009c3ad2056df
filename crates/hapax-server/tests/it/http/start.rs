use hapax::sqlite::rusqlite::Connection;
use hapax_testkit::Redis;
use serde_json::{Value, json};

use crate::cli_support::run;
use crate::support::server::{Server, Setup};
use crate::support::store::TestStore;
use crate::support::{hapax, has};

#[test]
fn banner_says_what_is_served_and_one_line_to_try() {
    let server = Server::start();
    let banner = server.banner();
    let words = ["memory:", "this machine only", "curl -i -X POST http://127.0.0.1:", "/v1/locks"];
    has(banner, &words);
    has(banner.split("curl").nth(1).unwrap().lines().next().unwrap(), &[&server.address]);
}

#[test]
fn start_ends_with_message_on_permanent_store_error() {
    for (setup, named) in [
        (Setup::on("mysql://host"), "sqlite:"),
        (Setup::on("redis://"), "store"),
        (Setup::on("sqlite:no/such/folder/x.db"), "folder"),
        (Setup::memory().flags(&["--sotre", "x"]), "--sotre"),
        (Setup::memory().flags(&["--store-timeout", "2"]), "--store-timeout"),
        (Setup::memory().file("lisen = 'x'"), "`lisen`"),
        (Setup::memory().flags(&["--config", "missing.toml"]), "missing.toml"),
        (Setup::at("0.0.0.0:0").flags(&["--store", "memory:"]), "hapax token new"),
        (Setup::memory().env("HAPAX_BODY_LIMIT", "many"), "HAPAX_BODY_LIMIT"),
    ] {
        has(&setup.refused(), &[named]);
    }
}

#[test]
fn store_password_is_never_printed() {
    let url = "redis://user:s3cret@127.0.0.1:1";
    let server = Setup::new().env("HAPAX_STORE", url).start();
    assert!(server.banner().contains("redis://127.0.0.1:1 (from HAPAX_STORE)"));
    let answers = server.get("/readyz").send().text() + &server.post("/v1/locks/k").send().text();
    let log = answers + server.banner() + &server.stop();
    assert!(!log.contains("s3cret"), "{log}");
}

#[test]
fn newer_sqlite_schema_is_refused_naming_both_versions() {
    let store = TestStore::sqlite();
    drop(Setup::on(&store.url()).start());
    let file = Connection::open(&store.url()["sqlite:".len()..]).unwrap();
    file.execute("UPDATE hapax_meta SET value = 99 WHERE name = 'schema'", []).unwrap();
    drop(file);
    has(&Setup::on(&store.url()).refused(), &["newer", "99"]);
}

#[test]
fn sqlite_file_of_another_kind_is_refused() {
    let store = TestStore::sqlite();
    let text = "this is no database at all, but long enough to look like one".repeat(20);
    std::fs::write(&store.url()["sqlite:".len()..], text).unwrap();
    has(&Setup::on(&store.url()).refused(), &["not a SQLite database"]);
}

#[test]
fn taken_port_is_named_at_start() {
    let server = Server::start();
    let message = Setup::at(&server.address).flags(&["--store", "memory:"]).refused();
    has(&message, &[&server.address, "another"]);
}

#[test]
fn seed_variables_are_honoured_unknown_ones_only_warned() {
    let server = Setup::memory()
        .env("PROCESSING_LOCK_TIMEOUT_SECONDS", "7")
        .env("PROCESSING_LOCK_ENABLED", "true")
        .env("LAST_TRANSACTION_TTL", "3600")
        .env("HAPAX_SERVICE_PORT_8787", "tcp://10.0.0.1")
        .start();
    assert_eq!(server.post("/v1/locks/k").send().json()["ttl_ms"], 7000);
    let log = server.stop();
    assert!(log.contains("HAPAX_SERVICE_PORT_8787"), "{log}");
    assert!(!log.contains("PROCESSING_LOCK") && !log.contains("LAST_TRANSACTION"), "{log}");
}

#[test]
fn redis_url_is_the_store_of_last_resort() {
    let server = Setup::new().env("REDIS_URL", "redis://127.0.0.1:1/0").start();
    has(server.banner(), &["redis://127.0.0.1:1/0 (from REDIS_URL)"]);
    let server = Setup::memory().env("REDIS_URL", "redis://127.0.0.1:1/0").start();
    assert!(server.banner().contains("memory:"));
}

#[test]
fn settings_come_from_the_file_too() {
    let server = Setup::memory().file("lock_ttl = '9s'\nbody_limit = 100\nlog = 'json'").start();
    assert_eq!(server.post("/v1/locks/k").send().json()["ttl_ms"], 9000);
    server.put("/v1/records/k").json(json!("x".repeat(100))).is(413, "payload-too-large");
    let log = server.stop();
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
}

#[test]
fn default_store_is_a_file_that_outlives_the_server() {
    let mut server = Setup::new().start();
    assert!(server.banner().contains("sqlite:hapax.db"));
    assert_eq!(server.put("/v1/records/k").json("1").status(), 201);
    let token = server.post("/v1/commands/o/k").send().token();
    let fence = server.post("/v1/locks/k").send().json()["fence"].as_u64().unwrap();
    server.restart();
    assert_eq!(server.get("/v1/records/k").send().text(), "1");
    let done = json!({"token": token, "status": 200});
    assert_eq!(server.put("/v1/commands/o/k").json(done).status(), 200);
    let later = server.post("/v1/locks/other").send().json()["fence"].as_u64().unwrap();
    assert!(later > fence);
}

#[test]
fn fault_34_unusable_variable_is_an_error() {
    use std::os::unix::ffi::OsStrExt;
    let not_text = std::ffi::OsStr::from_bytes(b"redis://\xff");
    for name in ["HAPAX_STORE", "HAPAX_CONFIG", "REDIS_URL"] {
        has(&Setup::new().env(name, not_text).refused(), &[name, "UTF-8"]);
    }
    for name in ["HAPAX_STORE", "HAPAX_CONFIG", "HAPAX_LISTEN", "HAPAX_LOCK_TTL"] {
        let mut setup = Setup::new();
        if name == "HAPAX_LISTEN" {
            setup = Setup::without_flags();
        }
        has(&setup.env(name, "").refused(), &[name]);
    }
    has(&Setup::on("").refused(), &["--store"]);
    // Empty is none for a setting that may be left out, and other programs' variables are theirs.
    let server = Setup::memory().env("HAPAX_SSE_SECRET", "").env("REDIS_URL", "").start();
    server.is_ready(true);
}

#[test]
fn fault_35_accepted_risk_starts_the_server() {
    let redis = Redis::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let name = "redis.eviction";
    let refused = Setup::on(&redis.url()).refused();
    has(&refused, &[name, "--accept-risk redis.eviction"]);
    has(&Setup::on(&redis.url()).flags(&["--accept-risk", "redis.clock"]).refused(), &[name]);
    has(&Setup::memory().flags(&["--accept-risk", "a b"]).refused(), &["--accept-risk"]);

    let accepted = Setup::on(&redis.url())
        .flags(&["--accept-risk", name, "--accept-risk", "redis.nothing"])
        .start();
    let ready = accepted.get("/readyz").send();
    assert_eq!((ready.status, &ready.json()["accepted_risks"]), (200, &json!([name])));
    accepted.counts("hapax_accepted_risk{check=\"redis.eviction\"} 1\n");
    let log = accepted.stop();
    has(&log, &["a risk is accepted", name, "redis.nothing"]);

    Setup::on(&redis.url()).env("HAPAX_ACCEPT_RISK", name).start().is_ready(true);
    let file = format!("accept_risk = ['{name}']");
    Setup::on(&redis.url()).file(&file).start().is_ready(true);
    let sound = Setup::memory().start().get("/readyz").send().json();
    assert_eq!(sound.get("accepted_risks"), None);

    let doctor =
        |more: &[&str]| run(hapax().args(["doctor", "--store", &redis.url()]).args(more)).code();
    assert_eq!((doctor(&[]), doctor(&["--accept-risk", name])), (2, 0));
}
