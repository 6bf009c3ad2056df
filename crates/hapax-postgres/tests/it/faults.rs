//! A server that hangs, dies, or has no room.

use std::time::{Duration, Instant};

use hapax_core::claims::ClaimState;
use hapax_core::{Claimed, Claims, Expect, Key, Records, Step, Store, StoreError, Tenant, Ticket};
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_testkit::{Postgres, TcpProxy};
use tokio::task::JoinSet;

use crate::{ask, key, open};

const LIMIT: Duration = Duration::from_secs(1);
/// The delay that a busy machine may add to a timeout.
const SLACK: Duration = Duration::from_secs(30);

/// A store with a short timeout, whose tables exist: creating them may take longer.
async fn hasty(url: &str) -> PostgresStore {
    open(url).ping().await.unwrap();
    PostgresStore::open(PostgresConfig::new(url).timeout(LIMIT)).unwrap()
}

/// Every operation, from many tasks at once: each has to end in time.
async fn all_fail_in_time(store: &PostgresStore) {
    let mut calls = JoinSet::new();
    for n in 0..40 {
        let store = store.clone();
        calls.spawn(async move {
            let began = Instant::now();
            let (key, record) =
                (key(&format!("f{n}")), Key::record(&Tenant::default(), "r").unwrap());
            let failed = match n % 8 {
                0 => store.claim(&key, &ask()).await.is_err(),
                1 => store.settle(&key, &ask().token, "v".into()).await.is_err(),
                2 => store.look(&key).await.is_err(),
                3 => store.get(&record).await.is_err(),
                4 => store.put(&record, "v".into(), &Expect::Any, None).await.is_err(),
                5 => store.ping().await.is_err(),
                6 => store.sweep(10).await.is_err(),
                _ => store.examine().await.is_err(),
            };
            (n % 8, failed, began.elapsed())
        });
    }
    for (call, failed, took) in calls.join_all().await {
        assert!(failed, "call {call} was answered");
        assert!(took < LIMIT + SLACK, "call {call} took {took:?}");
    }
}

/// Within a few limits, without being opened again.
async fn comes_back(store: &PostgresStore, name: &str) -> Ticket {
    let deadline = Instant::now() + Duration::from_secs(60);
    let ask = ask();
    loop {
        match store.claim(&key(name), &ask).await {
            Ok(Claimed::Granted { ticket, .. }) => return ticket,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
        assert!(Instant::now() < deadline, "{name}: it did not come back");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_server_times_out_and_is_found_again() {
    let server = Postgres::start();
    let store = hasty(&server.url()).await;
    let ticket = comes_back(&store, "before").await;
    let _watch = store.watch(&key("before"));
    for round in 0..3 {
        server.stop();
        all_fail_in_time(&store).await;
        server.cont();
        comes_back(&store, &format!("after{round}")).await;
    }
    let settled = open(&server.url()).settle(&key("before"), &ticket.token, "v".into()).await;
    assert_eq!(settled.unwrap(), Step::Done(ticket.fence));
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_hangs_from_the_start_is_found_later() {
    let server = Postgres::start();
    let store = hasty(&server.url()).await;
    server.stop();
    all_fail_in_time(&store).await;
    server.cont();
    comes_back(&store, "first").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_server_is_found_again_with_its_data() {
    let server = Postgres::start();
    let store = hasty(&server.url()).await;
    let mut last = comes_back(&store, "before").await.fence;
    for round in 0..3 {
        server.kill();
        all_fail_in_time(&store).await;
        server.restart();
        comes_back(&store, &format!("after{round}")).await;
        let view = open(&server.url()).look(&key("before")).await.unwrap();
        let view = view.expect("it was acknowledged");
        assert!(matches!(view.state, ClaimState::Pending { .. }), "{view:?}");
        let next = comes_back(&store, &format!("next{round}")).await.fence;
        assert!(next > last);
        last = next;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_session_costs_one_call_at_most() {
    let server = Postgres::start();
    let store = hasty(&server.url()).await;
    comes_back(&store, "before").await;
    server.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hapax'",
    );
    comes_back(&store, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_connections_is_a_transient_error() {
    let server =
        Postgres::with(&[("max_connections", "5"), ("superuser_reserved_connections", "3")]);
    server.psql("CREATE ROLE app LOGIN; GRANT ALL ON SCHEMA public TO app");
    let url = server.url().replace("postgres@", "app@");
    // Both places that are not reserved. The session of a `psql` that has ended may still have one
    // for a moment, and would else be taken for a hog.
    let mut hogs = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while hogs.len() < 2 {
        assert!(Instant::now() < deadline, "{} places are free", hogs.len());
        if let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await
        {
            tokio::spawn(connection);
            hogs.push(client);
        }
    }
    let store = open(&url);
    let refused = store.ping().await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    drop(hogs);
    comes_back(&store, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_call_spoils_no_connection() {
    let server = Postgres::start();
    let config =
        PostgresConfig::new(server.url()).max_connections(2).timeout(Duration::from_secs(60));
    let store = PostgresStore::open(config).unwrap();
    comes_back(&store, "before").await;
    let record = Key::record(&Tenant::default(), "r").unwrap();
    for n in 0..50_u64 {
        let brief = Duration::from_micros(n * 40);
        let _ =
            tokio::time::timeout(brief, store.put(&record, "v".into(), &Expect::Any, None)).await;
        let _ = tokio::time::timeout(brief, store.claim(&key(&format!("k{n}")), &ask())).await;
    }
    comes_back(&store, "after").await;
    // Not the same record: what was given up may be on its way, and come after this.
    let other = Key::record(&Tenant::default(), "other").unwrap();
    let _ = store.put(&other, "last".into(), &Expect::Any, None).await.unwrap();
    assert_eq!(store.get(&other).await.unwrap().unwrap().value, "last");
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_without_an_answer_is_recognised_on_retry() {
    let server = Postgres::start();
    let wire = TcpProxy::to(server.port());
    let url = server.url().replace(&server.port().to_string(), &wire.port().to_string());
    let store = open(&url);
    let first = comes_back(&store, "before").await;
    let ask = ask();

    wire.drop_next_answer_to(b"lost-answer");
    let lost = store.claim(&key("lost-answer"), &ask).await;
    assert!(matches!(lost, Err(StoreError::Unavailable { .. })), "{lost:?}");
    assert_eq!(wire.dropped_answers(), 1);
    let Claimed::Granted { ticket, attempt: 1 } =
        store.claim(&key("lost-answer"), &ask).await.unwrap()
    else {
        panic!("its own claim")
    };
    assert!(ticket.fence > first.fence);

    wire.drop_next_answer_to(b"lost-value");
    let lost = store.settle(&key("lost-answer"), &ticket.token, "lost-value".into()).await;
    assert!(matches!(lost, Err(StoreError::Unavailable { .. })), "{lost:?}");
    assert_eq!(wire.dropped_answers(), 2);
    let again = store.settle(&key("lost-answer"), &ticket.token, "lost-value".into()).await;
    assert_eq!(again.unwrap(), Step::Done(ticket.fence));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connection_times_out() {
    let server = Postgres::start();
    let wire = TcpProxy::to(server.port());
    let url = server.url().replace(&server.port().to_string(), &wire.port().to_string());
    let store = hasty(&url).await;
    comes_back(&store, "before").await;
    wire.stall_answers();
    all_fail_in_time(&store).await;
    wire.resume();
    comes_back(&store, "after-silence").await;
    wire.cut();
    comes_back(&store, "after-cut").await;
}
