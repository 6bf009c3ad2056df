use hapax_core::{Severity, Store};
use hapax_postgres::PostgresStore;
use hapax_testkit::{PgBouncer, Postgres};

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
    SERVER.database("pooler");
    let ignored = ("ignore_startup_parameters", "options,extra_float_digits");
    let pooled = |mode| PgBouncer::before(&SERVER, &[("pool_mode", mode), ignored]);
    for (mode, options, severity) in [
        ("transaction", "", Severity::Warn),
        ("transaction", "?pgbouncer=true", Severity::Warn),
        ("session", "", Severity::Fine),
    ] {
        let pooler = pooled(mode);
        let store = open(&(pooler.url_of("pooler") + options));
        let found = severities(&store).await;
        assert!(found.contains(&("postgres.pooler", severity)), "{mode}{options}: {found:?}");
    }
}

/// What a user sees who forgets the option: PgBouncer refuses the settings that hapax sends for a session.
#[tokio::test]
async fn pgbouncer_without_its_option_is_refused_with_the_remedy() {
    for mode in ["transaction", "session"] {
        let pooler = PgBouncer::before(&SERVER, &[("pool_mode", mode)]);
        let refused = open(&pooler.url()).ping().await.unwrap_err().to_string();
        assert!(refused.contains("pgbouncer=true"), "{refused}");
    }
}
