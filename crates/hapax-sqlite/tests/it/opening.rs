//! Opening files: new, foreign, locked, newer.

use std::thread;
use std::time::Duration;

use crate::common::*;
use hapax_core::{Claims, Log, Severity, Store, StoreError};
use hapax_sqlite::{SqliteConfig, SqliteStore, migrate};

fn refusal(config: impl Into<SqliteConfig>) -> String {
    match SqliteStore::open(config) {
        Err(error @ StoreError::Incompatible { .. }) => error.to_string(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[test]
fn open_refuses_paths_that_can_never_work() {
    let place = Place::new();
    assert!(refusal(":memory:").contains("memory:"));
    assert!(refusal("").contains("file"));
    assert!(refusal(place.file().parent().unwrap()).contains("folder"));
    assert!(refusal(place.file().join("missing").join("hapax.db")).contains("does not exist"));
    std::fs::write(place.file(), "no database, ".repeat(1000)).unwrap();
    assert!(refusal(place.file()).contains("not a SQLite database"));
}

#[test]
fn open_refuses_a_newer_schema() {
    let place = Place::new();
    drop(place.store());
    place.stranger().execute("UPDATE hapax_meta SET value = 99 WHERE name = 'schema'", []).unwrap();
    let message = refusal(place.file());
    assert!(message.contains("99") && message.contains('3'), "{message}");
    let refused = migrate(&place.stranger());
    assert!(matches!(refused, Err(StoreError::Incompatible { .. })));
}

#[tokio::test]
async fn schema_upgrade_by_another_process_stops_the_store() {
    let (place, store) = Place::with_store();
    settled(&store, &command("a"), "done").await;
    place.stranger().execute("UPDATE hapax_meta SET value = 99 WHERE name = 'schema'", []).unwrap();
    for answer in [store.claim(&command("a"), &ask()).await.err(), store.ping().await.err()] {
        assert!(matches!(answer, Some(StoreError::Incompatible { .. })), "{answer:?}");
    }
}

#[test]
fn open_refuses_another_number_of_partitions() {
    let place = Place::new();
    drop(SqliteStore::open(place.config().partitions(16)).unwrap());
    let message = refusal(place.config());
    assert!(message.contains("16") && message.contains("256"), "{message}");
    assert_eq!(SqliteStore::open(place.config().partitions(16)).unwrap().partitions(), 16);
}

#[tokio::test]
async fn open_creates_the_file_once_from_many_threads() {
    let place = Place::new();
    let stores: Vec<_> = (0..8)
        .map(|_| {
            let config = place.config();
            thread::spawn(move || SqliteStore::open(config).unwrap())
        })
        .collect();
    let mut fences = Vec::new();
    for (n, store) in stores.into_iter().enumerate() {
        let store = store.join().unwrap();
        fences.push(ticket(store.claim(&command(&n.to_string()), &ask()).await).fence);
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[tokio::test]
async fn migrate_keeps_the_tables_of_the_user() {
    let place = Place::new();
    let own = place.stranger();
    own.execute_batch("CREATE TABLE orders (id INTEGER); INSERT INTO orders VALUES (7)").unwrap();
    settled(&place.store(), &command("a"), "done").await;
    let order: i64 = own.query_row("SELECT id FROM orders", [], |row| row.get(0)).unwrap();
    assert_eq!(order, 7);
}

#[tokio::test]
async fn open_creates_files_with_mode_600() {
    use std::os::unix::fs::PermissionsExt;
    let (place, store) = Place::with_store();
    settled(&store, &command("a"), "done").await;
    for suffix in ["", "-wal", "-shm"] {
        let file = beside(&place.file(), suffix);
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{suffix}");
    }
}

#[tokio::test]
async fn open_succeeds_while_the_file_is_locked() {
    let place = Place::new();
    let other = place.stranger();
    other.execute_batch("CREATE TABLE orders (id INTEGER); BEGIN EXCLUSIVE").unwrap();
    let config = place.config().timeout(Duration::from_secs(3));
    let store = SqliteStore::open(config).unwrap();
    let (key, ask) = (command("a"), ask());
    let locked = retry_timeouts(async || store.claim(&key, &ask).await).await;
    assert!(matches!(locked, Err(StoreError::Locked { .. })), "{locked:?}");
    other.execute_batch("COMMIT").unwrap();
    ticket(retry_timeouts(async || store.claim(&key, &ask).await).await);
}

#[tokio::test]
async fn examine_finds_a_sound_store_fine() {
    let (_place, store) = Place::with_store();
    settled(&store, &command("a"), "done").await;
    let findings = store.examine().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity < Severity::Refuse), "{findings:?}");
    for check in ["journal", "synchronous", "schema", "mode", "room", "network", "log", "writers"] {
        let name = format!("sqlite.{check}");
        assert!(findings.iter().any(|finding| finding.check == name), "{check}: {findings:?}");
    }
}
