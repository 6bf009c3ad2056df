use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{StoreUnderTest, check, check_histories};
use hapax_core::Store;
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_testkit::PgBouncer;

use crate::SERVER;

struct OnPostgres(PostgresConfig);

#[async_trait]
impl StoreUnderTest for OnPostgres {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(PostgresStore::open(self.0.clone()).unwrap())
    }
}

/// Seventy laws connect at once, perhaps on a busy machine; how long they take is not the question.
fn config(database: &str) -> PostgresConfig {
    PostgresConfig::new(SERVER.database(database))
        .max_connections(4)
        .timeout(Duration::from_secs(60))
}

fn subject(config: &PostgresConfig) -> Arc<dyn StoreUnderTest> {
    Arc::new(OnPostgres(config.clone()))
}

#[tokio::test(flavor = "multi_thread")]
async fn store_keeps_every_law() {
    let config = config("laws");
    check(|| async { subject(&config) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_keeps_every_law_through_a_transaction_pooler() {
    SERVER.database("laws_pooled");
    let pooler = PgBouncer::before(&SERVER, &[("pool_mode", "transaction")]);
    let url = pooler.url_of("laws_pooled") + "?pgbouncer=true";
    let config = PostgresConfig::new(url).max_connections(4).timeout(Duration::from_secs(60));
    check(|| async { subject(&config) }).await;
}

#[test]
fn store_histories_agree_with_the_model() {
    let config = config("histories");
    check_histories(|| async { subject(&config) });
}
