use std::time::Duration;

use hapax_core::{Severity, Store};
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_testkit::Postgres;

use crate::{SERVER, open};

async fn severities(store: &PostgresStore) -> Vec<(&'static str, Severity)> {
    let findings = store.examine().await.unwrap();
    findings.into_iter().map(|finding| (finding.check, finding.severity)).collect()
}

#[tokio::test]
async fn examine_finds_a_sound_server_fine() {
    let store = open(&SERVER.database("sound"));
    for (check, severity) in severities(&store).await {
        assert_eq!(severity, Severity::Fine, "{check}");
    }
}

#[tokio::test]
async fn examine_names_each_broken_promise() {
    let unsound = [
        ("synchronous_commit", "off"),
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("max_connections", "10"),
    ];
    let server = Postgres::with(&unsound);
    let store = open(&server.url());
    let found = severities(&store).await;
    for expected in [
        ("postgres.synchronous_commit", Severity::Warn),
        ("postgres.fsync", Severity::Refuse),
        ("postgres.full_page_writes", Severity::Warn),
        ("postgres.connections", Severity::Warn),
        ("postgres.standby", Severity::Fine),
        ("postgres.pooler", Severity::Fine),
    ] {
        assert!(found.contains(&expected), "{expected:?} in {found:?}");
    }
}

#[tokio::test]
async fn examine_detects_a_transaction_pooler() {
    let config = PostgresConfig::new(SERVER.database("pooler")).transaction_pooler(true);
    let store = PostgresStore::open(config.timeout(Duration::from_secs(60))).unwrap();
    assert!(severities(&store).await.contains(&("postgres.pooler", Severity::Warn)));
}
