//! Fifty concurrent requests with one key and a slow handler, on every store and on two nodes of it.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Runs, app, memory, post, send};
use axum::Router;
use futures_util::future::join_all;
use hapax_core::Claims;
use hapax_http::IdempotencyConfig;
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_redis::{RedisConfig, RedisStore};
use hapax_sqlite::SqliteStore;
use hapax_testkit::{Postgres, Redis};

/// Long enough for a busy machine: timeouts are not tested here.
const PATIENCE: Duration = Duration::from_secs(30);

/// Fifty requests over these nodes: one execution, fifty equal responses.
async fn one_execution_fifty_answers(nodes: &[Arc<dyn Claims>]) {
    let runs = Runs::default();
    let config = IdempotencyConfig::new()
        .with_wait(Duration::from_secs(120))
        .with_lease(Duration::from_secs(120))
        .with_store_timeout(PATIENCE * 2);
    let node = |store: &Arc<dyn Claims>| -> Router {
        let counted = runs.clone();
        app(store.clone(), config.clone(), || async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            ([("location", "/orders/1")], format!("order {}", counted.add()))
        })
    };
    let nodes: Vec<_> = nodes.iter().map(node).collect();
    let requests = (0..50).map(|i| {
        let app = nodes[i % nodes.len()].clone();
        tokio::spawn(async move { send(&app, post("k", "tea")).await })
    });
    let answers: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(runs.count(), 1);
    for answer in &answers {
        assert_eq!(
            (answer.status.as_u16(), &answer.body[..]),
            (200, &b"order 1"[..]),
            "{answer:?}"
        );
        assert_eq!(answer.header("location"), Some("/orders/1"));
    }
    assert_eq!(answers.iter().filter(|answer| answer.is_replay()).count(), 49);
}

fn redis(server: &Redis) -> Arc<dyn Claims> {
    let config = RedisConfig::new(&server.url()).unwrap().timeout(PATIENCE);
    Arc::new(RedisStore::open(config).unwrap())
}

fn postgres(server: &Postgres) -> Arc<dyn Claims> {
    let config = PostgresConfig::new(server.url()).timeout(PATIENCE).max_connections(2);
    Arc::new(PostgresStore::open(config).unwrap())
}

fn sqlite(folder: &tempfile::TempDir) -> Arc<dyn Claims> {
    let config = hapax_sqlite::SqliteConfig::new(folder.path().join("hapax.db")).timeout(PATIENCE);
    Arc::new(SqliteStore::open(config).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_run_once_on_memory() {
    one_execution_fifty_answers(&[memory().0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_run_once_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    one_execution_fifty_answers(&[sqlite(&folder)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_run_once_on_two_sqlite_handles() {
    let folder = tempfile::tempdir().unwrap();
    one_execution_fifty_answers(&[sqlite(&folder), sqlite(&folder)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_run_once_on_redis() {
    let server = Redis::start();
    one_execution_fifty_answers(&[redis(&server)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_run_once_on_redis_with_two_nodes() {
    let server = Redis::start();
    one_execution_fifty_answers(&[redis(&server), redis(&server)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_run_once_on_postgres() {
    let server = Postgres::start();
    one_execution_fifty_answers(&[postgres(&server)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_requests_run_once_on_postgres_with_two_nodes() {
    let server = Postgres::start();
    one_execution_fifty_answers(&[postgres(&server), postgres(&server)]).await;
}
