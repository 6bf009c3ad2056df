//! Access: TLS, passwords, rights.

use std::time::Duration;

use hapax_core::queue::{LeaseRequest, QueueName};
use hapax_core::{Claims, Log, Queue, Store, StoreError};
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_testkit::Postgres;

use crate::{SERVER, ask, client, granted, key, open};

#[tokio::test]
async fn tls_mode_decides_what_is_verified() {
    let server = Postgres::tls();
    let stranger = Postgres::tls();
    let (ours, theirs) = (server.ca_path().display(), stranger.ca_path().display());
    let other_name = server.url().replace("127.0.0.1", "127.0.0.2");
    let url = server.url();
    for works in [
        format!("{url}?sslmode=require"),
        url.clone(),
        format!("{url}?sslmode=prefer"),
        format!("{url}?sslmode=verify-ca&sslrootcert={ours}"),
        format!("{url}?sslmode=verify-full&sslrootcert={ours}"),
        format!("{url}?sslmode=require&sslrootcert={ours}"),
    ] {
        open(&works).ping().await.unwrap_or_else(|error| panic!("{works}: {error}"));
    }
    for fails in [
        format!("{url}?sslmode=disable"),
        format!("{url}?sslmode=verify-ca&sslrootcert={theirs}"),
        format!("{url}?sslmode=verify-full&sslrootcert={theirs}"),
        format!("{url}?sslmode=verify-full"),
        format!("{url}?sslmode=require&sslrootcert={theirs}"),
        format!("{other_name}?sslmode=verify-full&sslrootcert={ours}"),
    ] {
        assert!(open(&fails).ping().await.is_err(), "{fails}");
    }
}

#[tokio::test]
async fn tls_verify_full_checks_the_host_name() {
    let server = Postgres::tls();
    let ca = server.ca_path().display();
    // `hostaddr` is where to go, `host` is the name to look for.
    let url = format!(
        "postgres://postgres@not-in-the-certificate:{}/postgres?hostaddr=127.0.0.1&sslrootcert={ca}",
        server.port()
    );
    open(&format!("{url}&sslmode=verify-ca")).ping().await.unwrap();
    let refused = open(&format!("{url}&sslmode=verify-full")).ping().await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
}

#[tokio::test]
async fn tls_required_refuses_plain_text() {
    let refused = open(&format!("{}?sslmode=require", SERVER.url())).ping().await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
}

#[tokio::test]
async fn wrong_password_is_refused_and_not_shown() {
    let server = Postgres::start();
    server.psql("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right-one'");
    let hba = server.psql("SHOW hba_file");
    std::fs::write(
        &hba,
        "host all guarded all scram-sha-256\nlocal all all trust\nhost all all all trust\n",
    )
    .unwrap();
    // A reload would reach the server some time; a start reads it.
    server.restart();
    let url = |password: &str| {
        format!("postgres://guarded{password}@127.0.0.1:{}/postgres", server.port())
    };
    for wrong in [":wrong-one", ""] {
        let refused = open(&url(wrong)).ping().await.expect_err("refused");
        assert!(matches!(refused, StoreError::Refused { .. }), "{refused:?}");
        assert!(!format!("{refused} {refused:?}").contains("wrong-one"));
    }
    open(&url(":right-one")).ping().await.unwrap();
}

#[tokio::test]
async fn role_needs_only_a_few_rights() {
    let url = SERVER.database("rights");
    SERVER.psql_in("rights", "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    SERVER.psql_in("rights", "CREATE ROLE visitor LOGIN");
    let visitor = url.replace("postgres@", "visitor@");
    let refused = open(&visitor).ping().await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    open(&url).ping().await.unwrap();
    SERVER.psql_in("rights", "GRANT SELECT, INSERT, UPDATE, DELETE ON hapax_meta, hapax_claims, hapax_records TO visitor");
    SERVER.psql_in("rights", "GRANT USAGE ON hapax_fence TO visitor");
    granted(&open(&visitor), &key("k"), &ask()).await;

    // An application that only enqueues needs nothing else.
    SERVER.psql_in("rights", "CREATE ROLE shop LOGIN; GRANT INSERT ON hapax_outbox TO shop");
    let shop = client(&url.replace("postgres@", "shop@")).await;
    shop.batch_execute("INSERT INTO hapax_outbox (topic, payload) VALUES ('t', 'x')")
        .await
        .unwrap();
    let all = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO visitor; \
               GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO visitor";
    SERVER.psql_in("rights", all);
    let node = open(&visitor);
    let event = crate::logs::event(&crate::logs::job("j"), 1);
    assert_eq!(node.append(&[event], &crate::logs::KEEP).await.unwrap().len(), 1);
    let (queue, take) = (QueueName::outbox(), LeaseRequest::new(10, Duration::from_secs(60)));
    let leased = node.lease(&queue, &take).await.unwrap();
    assert_eq!(leased.len(), 1);
    node.ack(&queue, &take.token, &[leased[0].item.id], Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn missing_database_is_incompatible() {
    let missing = SERVER.url().replace("/postgres", "/no_such_database").replacen(
        "//no_such_database@",
        "//postgres@",
        1,
    );
    let refused = open(&missing).ping().await;
    assert!(matches!(refused, Err(StoreError::Incompatible { .. })), "{refused:?}");
}

#[tokio::test]
async fn read_only_transactions_are_reported() {
    let url = SERVER.database("read_only");
    open(&url).ping().await.unwrap();
    let store = open(&format!("{url}?options=-c%20default_transaction_read_only%3Don"));
    let refused = store.claim(&key("k"), &ask()).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    assert!(matches!(store.ping().await, Err(StoreError::ReadOnly { .. })));
}

#[tokio::test]
async fn open_needs_no_server_and_refuses_a_bad_url() {
    let store = open("postgres://postgres@127.0.0.1:1/postgres");
    let down = store.claim(&key("k"), &ask()).await;
    assert!(matches!(down, Err(StoreError::Unavailable { .. })), "{down:?}");
    let bad = PostgresStore::open(PostgresConfig::new("postgres://u:secret@h:x/d")).unwrap_err();
    assert!(matches!(bad, StoreError::Incompatible { .. }));
    assert!(!format!("{bad} {bad:?}").contains("secret"));
}
