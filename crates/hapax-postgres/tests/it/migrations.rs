use std::time::Duration;

use hapax_core::{Claimed, Claims, Log, Store, StoreError};
use hapax_postgres::{PostgresConfig, PostgresStore, SCHEMA_VERSION, migrate};
use tokio::task::JoinSet;

use crate::{SERVER, ask, client, granted, key, open};

#[tokio::test(flavor = "multi_thread")]
async fn migrate_from_eight_nodes_runs_once() {
    let url = SERVER.database("migrations");
    let mut nodes = JoinSet::new();
    for n in 0..8 {
        let store = open(&url);
        nodes.spawn(async move { granted(&store, &key(&format!("k{n}")), &ask()).await });
    }
    assert_eq!(nodes.join_all().await.len(), 8);
    let rows = SERVER.psql_in(
        "migrations",
        "SELECT name, value FROM hapax_meta WHERE name <> 'line' ORDER BY 1",
    );
    assert_eq!(rows, format!("partitions|256\nschema|{SCHEMA_VERSION}"));
}

/// Tables of the first version, with a claim in them.
#[tokio::test]
async fn migrate_keeps_the_rows_of_older_tables() {
    let url = SERVER.database("older");
    let own = client(&url).await;
    own.batch_execute(include_str!("../../migrations/0001_claims_and_records.sql")).await.unwrap();
    own.batch_execute(
        "INSERT INTO hapax_meta VALUES ('schema', '1');
         INSERT INTO hapax_claims VALUES ('default', 'command', 'test', 'k', 1, 1, 1, 0, 0, 0,
             4000000000000, 'token', NULL, 'kept')",
    )
    .await
    .unwrap();
    let store = open(&url);
    let answer = store.claim(&key("k"), &ask()).await.unwrap();
    assert!(matches!(answer, Claimed::Settled { value, .. } if value == "kept"));
    let event = crate::logs::event(&crate::logs::job("j"), 1);
    assert_eq!(store.append(&[event], &crate::logs::KEEP).await.unwrap().len(), 1);
}

#[tokio::test]
async fn migrate_refuses_a_newer_schema() {
    let url = SERVER.database("newer");
    let mut own = client(&url).await;
    migrate(&mut own).await.unwrap();
    migrate(&mut own).await.unwrap();
    own.batch_execute("UPDATE hapax_meta SET value = '99' WHERE name = 'schema'").await.unwrap();
    let refused = open(&url).ping().await;
    assert!(matches!(refused, Err(StoreError::Incompatible { .. })), "{refused:?}");
    let refused = open(&url).claim(&key("k"), &ask()).await;
    assert!(matches!(refused, Err(StoreError::Incompatible { .. })), "{refused:?}");
    assert!(matches!(migrate(&mut own).await, Err(StoreError::Incompatible { .. })));
}

#[tokio::test]
async fn schema_setting_keeps_the_tables_apart() {
    let url = SERVER.database("own_schema");
    let config = PostgresConfig::new(&url).schema("hapax_data").timeout(Duration::from_secs(60));
    let store = PostgresStore::open(config).unwrap();
    granted(&store, &key("k"), &ask()).await;
    let sql = "SELECT schemaname FROM pg_tables WHERE tablename = 'hapax_claims'";
    assert_eq!(SERVER.psql_in("own_schema", sql), "hapax_data");
    let hostile = PostgresConfig::new(&url).schema("x; DROP TABLE y");
    assert!(matches!(PostgresStore::open(hostile), Err(StoreError::Incompatible { .. })));
}

#[tokio::test]
async fn dropped_tables_are_recreated() {
    let url = SERVER.database("dropped");
    let store = open(&url);
    granted(&store, &key("k"), &ask()).await;
    SERVER.psql_in("dropped", "DROP SCHEMA public CASCADE");
    SERVER.psql_in("dropped", "CREATE SCHEMA public");
    assert!(store.claim(&key("k"), &ask()).await.is_err());
    granted(&store, &key("k"), &ask()).await;
}
