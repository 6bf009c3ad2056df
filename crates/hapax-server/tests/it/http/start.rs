use hapax::sqlite::rusqlite::Connection;

use crate::support::server::{Server, Setup};

#[test]
fn banner_says_what_is_served_and_one_line_to_try() {
    let server = Server::start();
    let banner = server.banner();
    for word in ["memory:", "this machine only", "curl -i -X POST http://127.0.0.1:", "/v1/locks"] {
        assert!(banner.contains(word), "{word}: {banner}");
    }
    let line = server.banner().lines().find(|line| line.contains("curl")).unwrap();
    let tried = line.split("curl").nth(1).unwrap();
    assert!(tried.contains(&server.address));
}

#[test]
fn start_ends_with_message_on_permanent_store_error() {
    for (setup, named) in [
        (Setup::new().flags(&["--store", "mysql://host"]), "sqlite:"),
        (Setup::new().flags(&["--store", "redis://"]), "store"),
        (Setup::new().flags(&["--store", "sqlite:no/such/folder/x.db"]), "folder"),
        (Setup::memory().flags(&["--sotre", "x"]), "--sotre"),
        (Setup::memory().flags(&["--store-timeout", "2"]), "--store-timeout"),
        (Setup::memory().file("lisen = 'x'"), "`lisen`"),
        (Setup::memory().flags(&["--config", "missing.toml"]), "missing.toml"),
        (Setup::at("0.0.0.0:0"), "hapax token new"),
        (Setup::memory().env("HAPAX_BODY_LIMIT", "many"), "HAPAX_BODY_LIMIT"),
    ] {
        let (message, code) = setup.refused();
        assert_ne!(code, 0, "{message}");
        assert!(message.contains(named), "{named}: {message}");
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

fn refused(path: &std::path::Path) -> String {
    let url = format!("sqlite:{}", path.display());
    let (message, code) = Setup::new().flags(&["--store", &url]).refused();
    assert_ne!(code, 0);
    message
}

#[test]
fn newer_sqlite_schema_is_refused_naming_both_versions() {
    let server = Setup::new().start();
    let folder = server.kill_and_keep_folder();
    let path = folder.path().join("hapax.db");
    let file = Connection::open(&path).unwrap();
    file.execute("UPDATE hapax_meta SET value = 99 WHERE name = 'schema'", []).unwrap();
    drop(file);
    let message = refused(&path);
    assert!(message.contains("newer") && message.contains("99"), "{message}");
}

#[test]
fn sqlite_file_of_another_kind_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.db");
    std::fs::write(
        &path,
        "this is no database at all, but long enough to look like one".repeat(20),
    )
    .unwrap();
    let message = refused(&path);
    assert!(message.contains("not a SQLite database"), "{message}");
}

#[test]
fn taken_port_is_named_at_start() {
    let server = Server::start();
    let taken = server.address.clone();
    let (message, code) = Setup::at(&taken).refused();
    assert_ne!(code, 0);
    assert!(message.contains(&taken) && message.contains("another"), "{message}");
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
    let banner = server.banner();
    assert!(banner.contains("redis://127.0.0.1:1/0 (from REDIS_URL)"), "{banner}");
    let server = Setup::memory().env("REDIS_URL", "redis://127.0.0.1:1/0").start();
    assert!(server.banner().contains("memory:"));
}

#[test]
fn settings_come_from_the_file_too() {
    let server = Setup::memory().file("lock_ttl = '9s'\nbody_limit = 100\nlog = 'json'").start();
    assert_eq!(server.post("/v1/locks/k").send().json()["ttl_ms"], 9000);
    server
        .put("/v1/records/k")
        .json(&format!("\"{}\"", "x".repeat(100)))
        .send()
        .is(413, "payload-too-large");
    let log = server.stop();
    for line in log.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
}

#[test]
fn default_store_is_a_file_that_outlives_the_server() {
    let server = Setup::new().start();
    assert!(server.banner().contains("sqlite:hapax.db"));
    assert_eq!(server.put("/v1/records/k").json("1").status(), 201);
    let begun = server.post("/v1/commands/o/k").send().json();
    let token = begun["token"].as_str().unwrap().to_owned();
    let fence = server.post("/v1/locks/k").send().json()["fence"].as_u64().unwrap();
    let url = format!("sqlite:{}", server.folder.path().join("hapax.db").display());
    let folder = server.kill_and_keep_folder();
    let again = Setup::new().flags(&["--store", &url]).start();
    assert_eq!(again.get("/v1/records/k").send().text(), "1");
    let done = format!("{{\"token\":\"{token}\",\"status\":200}}");
    assert_eq!(again.put("/v1/commands/o/k").json(&done).status(), 200);
    let later = again.post("/v1/locks/other").send().json()["fence"].as_u64().unwrap();
    assert!(later > fence);
    drop(folder);
}
