//! The store on real servers.

mod access;
mod clock;
mod conformance;
mod consume;
mod errors;
mod examine;
mod failover;
mod faults;
mod flows;
mod full_disk;
mod kills;
mod lists;
mod logs;
mod migrate_from;
mod migrations;
mod nodes;
mod outbox;
mod plans;
mod queues;
mod records;
mod snapshots;
mod sql;
mod transactions;

use std::sync::LazyLock;
use std::time::Duration;

use hapax_core::{
    ClaimRequest, Claimed, Claims, Key, Operation, StoreError, StoreResult, Tenant, Ticket,
};
use hapax_postgres::{PostgresConfig, PostgresStore, migrate};
use hapax_testkit::Postgres;
use tokio_postgres::NoTls;

const LONG: Duration = Duration::from_secs(3600);

/// One server for all tests that do not harm it; each has a database of its own.
static SERVER: LazyLock<Postgres> = LazyLock::new(|| Postgres::with(&[("max_connections", "500")]));

/// A store with a timeout that does not fail on a busy machine.
fn open(url: &str) -> PostgresStore {
    PostgresStore::open(PostgresConfig::new(url).timeout(Duration::from_secs(60))).unwrap()
}

/// Calls a store that has a short timeout, and repeats the call if it timed out, as it may on a busy
/// machine.
async fn retry_timeouts<T>(call: impl AsyncFn() -> StoreResult<T>) -> StoreResult<T> {
    for _ in 0..10 {
        match call().await {
            Err(StoreError::Timeout { .. }) => {}
            answer => return answer,
        }
    }
    panic!("the call timed out ten times");
}

fn key(name: &str) -> Key {
    Key::command(&Tenant::default(), Operation("test"), name).unwrap()
}

fn ask() -> ClaimRequest {
    ClaimRequest::new(LONG).retention(LONG)
}

async fn granted(store: &dyn Claims, key: &Key, ask: &ClaimRequest) -> Ticket {
    match store.claim(key, ask).await.expect("the store answers") {
        Claimed::Granted { ticket, .. } => ticket,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// The database of an application that has hapax's tables in it, and a connection to it.
async fn application(database: &str) -> (String, tokio_postgres::Client) {
    let url = SERVER.database(database);
    let mut client = client(&url).await;
    migrate(&mut client).await.unwrap();
    client.batch_execute("CREATE TABLE orders (id text)").await.unwrap();
    (url, client)
}

/// A connection of the application's own.
async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// How many pages a statement looks at, those of functions that it calls included.
async fn pages_of(own: &tokio_postgres::Client, statement: &str) -> i64 {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION pg_temp.pages() RETURNS bigint LANGUAGE plpgsql AS $$ \
         DECLARE plan json; \
         BEGIN EXECUTE $e$EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}$e$ INTO plan; \
         RETURN (plan->0->'Plan'->>'Shared Hit Blocks')::bigint \
              + (plan->0->'Plan'->>'Shared Read Blocks')::bigint; END $$",
    );
    own.batch_execute(&sql).await.unwrap();
    own.query_one("SELECT pg_temp.pages()", &[]).await.unwrap().get(0)
}
