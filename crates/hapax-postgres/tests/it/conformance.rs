use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{Subject, check, check_histories};
use hapax_core::Store;
use hapax_postgres::{Config, PostgresStore};

use crate::SERVER;

struct OnPostgres(Config);

#[async_trait]
impl Subject for OnPostgres {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::open(self.0.clone()).unwrap())
    }
}

/// Seventy laws connect at once, perhaps on a busy machine; how long they take is not the question.
fn config(database: &str) -> Config {
    Config::new(SERVER.database(database)).pool(4).limit(Duration::from_secs(60))
}

fn subject(config: &Config) -> Arc<dyn Subject> {
    Arc::new(OnPostgres(config.clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_keeps_every_law() {
    let config = config("laws");
    check(|| async { subject(&config) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_keeps_every_law_without_prepared_statements_and_settings() {
    let config = config("laws_pooled").pooled(true);
    check(|| async { subject(&config) }).await;
}

#[test]
fn random_histories_agree_with_the_model() {
    let config = config("histories");
    check_histories(|| async { subject(&config) });
}
