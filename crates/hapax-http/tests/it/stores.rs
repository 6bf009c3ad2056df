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
use hapax_sqlite::{SqliteConfig, SqliteStore};
use hapax_testkit::{Postgres, Redis};
use tempfile::tempdir;
use tokio::sync::Semaphore;

/// Long enough for a busy machine: timeouts are not tested here.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// Fifty requests over these nodes: one execution, fifty equal responses.
async fn one_execution_fifty_answers(nodes: &[Arc<dyn Claims>]) {
    // The one that runs ends when all have been sent.
    let (runs, asked) = (Runs::default(), Arc::new(Semaphore::new(0)));
    let config = IdempotencyConfig::new()
        .with_wait(Duration::from_secs(120))
        .with_lease(Duration::from_secs(120))
        .with_store_timeout(STORE_TIMEOUT * 2);
    let node = |store: &Arc<dyn Claims>| -> Router {
        let (counted, asked) = (runs.clone(), asked.clone());
        app(store.clone(), config.clone(), || async move {
            let _ = asked.acquire_many(50).await;
            ([("location", "/orders/1")], format!("order {}", counted.add()))
        })
    };
    let nodes: Vec<_> = nodes.iter().map(node).collect();
    let requests = (0..50).map(|i| {
        let app = nodes[i % nodes.len()].clone();
        asked.add_permits(1);
        tokio::spawn(async move { send(&app, post("k", "tea")).await })
    });
    let answers: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(runs.count(), 1);
    for answer in &answers {
        assert!(answer.status == 200 && answer.body == "order 1", "{answer:?}");
        assert_eq!(answer.header("location"), Some("/orders/1"));
    }
    assert_eq!(answers.iter().filter(|answer| answer.is_replay()).count(), 49);
}

fn redis(server: &Redis) -> Arc<dyn Claims> {
    let config = RedisConfig::new(&server.url()).unwrap().timeout(STORE_TIMEOUT);
    Arc::new(RedisStore::open(config).unwrap())
}

fn postgres(server: &Postgres) -> Arc<dyn Claims> {
    let config = PostgresConfig::new(server.url()).timeout(STORE_TIMEOUT).max_connections(2);
    Arc::new(PostgresStore::open(config).unwrap())
}

fn sqlite(folder: &tempfile::TempDir) -> Arc<dyn Claims> {
    let config = SqliteConfig::new(folder.path().join("hapax.db")).timeout(STORE_TIMEOUT);
    Arc::new(SqliteStore::open(config).unwrap())
}

/// A test of some nodes on one server.
macro_rules! fifty_requests {
    ($name:ident, $server:expr, $node:expr, $nodes:literal) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            let server = $server;
            let nodes: Vec<Arc<dyn Claims>> = (0..$nodes).map(|_| $node(&server)).collect();
            one_execution_fifty_answers(&nodes).await;
        }
    };
}

fifty_requests!(fifty_requests_run_once_on_memory, (), |_: &()| memory().0 as Arc<dyn Claims>, 1);
fifty_requests!(fifty_requests_run_once_on_sqlite, tempdir().unwrap(), sqlite, 1);
fifty_requests!(fifty_requests_run_once_on_two_sqlite_handles, tempdir().unwrap(), sqlite, 2);
fifty_requests!(fifty_requests_run_once_on_redis, Redis::start(), redis, 1);
fifty_requests!(fifty_requests_run_once_on_redis_with_two_nodes, Redis::start(), redis, 2);
fifty_requests!(fifty_requests_run_once_on_postgres, Postgres::start(), postgres, 1);
fifty_requests!(fifty_requests_run_once_on_postgres_with_two_nodes, Postgres::start(), postgres, 2);
