//! Claims inside the application's own transactions.

use std::time::Duration;

use hapax_core::{
    ClaimRequest, Claimed, Claims, Expect, GiveBack, Key, OnUnknown, Put, Records, Step,
    StoreError, Tenant,
};
use hapax_postgres::{Config, InTransaction, Once, PostgresStore, migrate, once_in};
use tokio::time::timeout;
use tokio_postgres::{Client, IsolationLevel};

use crate::{LONG, SERVER, ask, client, granted, key, open, said};

async fn application(database: &str) -> (String, Client) {
    let url = SERVER.database(database);
    let mut client = client(&url).await;
    migrate(&mut client).await.unwrap();
    client.batch_execute("CREATE TABLE orders (id text)").await.unwrap();
    (url, client)
}

async fn orders(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM orders", &[]).await.unwrap().get(0)
}

/// At once: whatever waits for a lock ends with an error, because the lock is not given up.
async fn is_busy(claims: &dyn Claims, key: &Key, ask: &ClaimRequest) {
    let answer = claims.claim(key, ask).await.unwrap();
    assert!(matches!(answer, Claimed::Busy { .. }), "{answer:?}");
}

#[tokio::test]
async fn the_claim_and_the_row_commit_together() {
    let (url, mut client) = application("tx_commit").await;
    for expected_orders in [1, 1] {
        let tx = client.transaction().await.unwrap();
        let once = once_in(&tx, &key("order"), &ask(), async |_ticket| {
            tx.execute("INSERT INTO orders VALUES ('1')", &[]).await.unwrap();
            Ok::<_, StoreError>("placed".into())
        })
        .await
        .unwrap();
        match once {
            Once::Ran(value) => assert_eq!(value, "placed"),
            Once::Not(Claimed::Settled { value, .. }) => assert_eq!(value, "placed"),
            Once::Not(other) => panic!("{other:?}"),
        }
        tx.commit().await.unwrap();
        assert_eq!(orders(&client).await, expected_orders);
    }
    // A plain store on the same database knows it too.
    let answer = open(&url).claim(&key("order"), &ask()).await.unwrap();
    assert!(matches!(answer, Claimed::Settled { value, .. } if value == "placed"));
}

#[tokio::test]
async fn the_claim_and_the_row_roll_back_together() {
    let (url, mut client) = application("tx_rollback").await;
    let tx = client.transaction().await.unwrap();
    let failed: Result<Once, StoreError> = once_in(&tx, &key("order"), &ask(), async |_| {
        tx.execute("INSERT INTO orders VALUES ('1')", &[]).await.unwrap();
        Err(StoreError::Internal { reason: "the work failed".into(), source: None })
    })
    .await;
    assert!(failed.is_err());
    drop(tx);
    assert_eq!(orders(&client).await, 0);
    let store = open(&url);
    assert_eq!(store.look(&key("order")).await.unwrap(), None);
    granted(&store, &key("order"), &ask()).await;
}

#[tokio::test]
async fn a_duplicate_is_told_busy_at_once_while_the_first_transaction_is_open() {
    let (url, mut first) = application("tx_busy").await;
    let mut second = client(&url).await;
    let store = open(&url);
    let tx = first.transaction().await.unwrap();
    let ticket = granted(&InTransaction::new(&tx), &key("order"), &ask()).await;

    let other = second.transaction().await.unwrap();
    is_busy(&InTransaction::new(&other), &key("order"), &ask()).await;
    is_busy(&store, &key("order"), &ask()).await;
    // Its neighbours in the same batch are not held up either.
    let neighbours = (0..20).map(|n| (key(&format!("n{n}")), ask()));
    let running: Vec<_> = neighbours
        .map(|(key, ask)| {
            let store = store.clone();
            tokio::spawn(async move { granted(&store, &key, &ask).await })
        })
        .collect();
    is_busy(&store, &key("order"), &ask()).await;
    for neighbour in running {
        neighbour.await.unwrap();
    }
    // Nor is the second transaction harmed.
    granted(&InTransaction::new(&other), &key("another"), &ask()).await;
    other.commit().await.unwrap();

    let hapax = InTransaction::new(&tx);
    is_busy(&hapax, &key("order"), &ask()).await;
    let settled = hapax.settle(&key("order"), &ticket.token, "v".into()).await.unwrap();
    assert_eq!(settled, Step::Done(ticket.fence));
    tx.commit().await.unwrap();
    let answer = store.claim(&key("order"), &ask()).await.unwrap();
    assert!(matches!(answer, Claimed::Settled { .. }));
}

#[tokio::test]
async fn a_takeover_in_an_open_transaction_holds_up_nobody() {
    let (url, mut first) = application("tx_takeover").await;
    let store = open(&url);
    let mut brief = ask().on_unknown(OnUnknown::TakeOver);
    brief.lease = Duration::from_millis(1);
    let late = granted(&store, &key("order"), &brief).await;
    tokio::time::sleep(Duration::from_millis(20)).await;

    let tx = first.transaction().await.unwrap();
    let taken = granted(&InTransaction::new(&tx), &key("order"), &brief.with_fresh_token()).await;
    assert!(taken.fence > late.fence);
    is_busy(&store, &key("order"), &brief.with_fresh_token()).await;
    // The late owner's settle cannot be decided before the transaction ends.
    let settle = tokio::spawn({
        let store = store.clone();
        async move { store.settle(&key("order"), &late.token, "late".into()).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    tx.commit().await.unwrap();
    assert_eq!(settle.await.unwrap().unwrap(), Step::Lost);
}

#[tokio::test]
async fn a_step_behind_an_open_transaction_is_locked_within_the_limit() {
    let (url, mut first) = application("tx_locked").await;
    let limit = Duration::from_secs(6);
    let store = PostgresStore::open(Config::new(&url).limit(limit)).unwrap();
    let ticket = granted(&open(&url), &key("order"), &ask()).await;
    let record = Key::record(&Tenant::default(), "r").unwrap();

    let tx = first.transaction().await.unwrap();
    let hapax = InTransaction::new(&tx);
    let _ = hapax.extend(&key("order"), &ticket.token, LONG).await.unwrap();
    let _ = hapax.put(&record, "in".into(), &Expect::Absent, None).await.unwrap();
    let order = key("order");
    let settle = async || store.settle(&order, &ticket.token, "v".into()).await;
    let put = async || store.put(&record, "out".into(), &Expect::Any, None).await;
    // The transaction does not end: without a limit they would wait for ever.
    let both = async { tokio::join!(said(settle), said(put)) };
    let (settled, stored) = timeout(20 * limit, both).await.expect("answers in time");
    assert!(matches!(settled, Err(StoreError::Locked { .. })), "{settled:?}");
    assert!(matches!(stored, Err(StoreError::Locked { .. })), "{stored:?}");
    tx.rollback().await.unwrap();
    assert_eq!(said(settle).await.unwrap(), Step::Done(ticket.fence));
    let stored = open(&url).put(&record, "out".into(), &Expect::Any, None).await.unwrap();
    assert!(matches!(stored, Put::Stored { created: true, .. }), "{stored:?}");
}

#[tokio::test]
async fn records_and_steps_work_inside_a_transaction() {
    let (url, mut first) = application("tx_steps").await;
    let record = Key::record(&Tenant::default(), "r").unwrap();
    let tx = first.transaction().await.unwrap();
    let hapax = InTransaction::new(&tx);
    let ticket = granted(&hapax, &key("a"), &ask()).await;
    assert_eq!(
        hapax.extend(&key("a"), &ticket.token, LONG).await.unwrap(),
        Step::Done(ticket.fence)
    );
    assert!(hapax.look(&key("a")).await.unwrap().is_some());
    let back = hapax.give_back(&key("a"), &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(back, Step::Done(ticket.fence));
    assert!(granted(&hapax, &key("a"), &ask()).await.fence > ticket.fence);
    let _ = hapax.put(&record, "v".into(), &Expect::Absent, None).await.unwrap();
    assert_eq!(hapax.get(&record).await.unwrap().unwrap().value, "v");
    assert_eq!(open(&url).get(&record).await.unwrap(), None);
    let _ = hapax.delete(&record, &Expect::Any).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(open(&url).get(&record).await.unwrap(), None);
}

#[tokio::test]
async fn a_lost_race_of_a_serializable_transaction_is_told_as_such() {
    let (url, mut first) = application("tx_serializable").await;
    let store = open(&url);
    let level = IsolationLevel::Serializable;
    let tx = first.build_transaction().isolation_level(level).start().await.unwrap();
    // The snapshot is taken by the first statement.
    tx.query("SELECT * FROM orders", &[]).await.unwrap();
    granted(&store, &key("order"), &ask()).await;
    let lost = InTransaction::new(&tx).claim(&key("order"), &ask()).await;
    assert!(matches!(lost, Err(StoreError::Locked { .. })), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_transactions_with_one_key_one_places_the_order() {
    let (url, client) = application("tx_race").await;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..24 {
        let url = url.clone();
        running.spawn(async move {
            let mut own = crate::client(&url).await;
            let tx = own.transaction().await.unwrap();
            let once = once_in(&tx, &key("order"), &ask(), async |_| {
                tx.execute("INSERT INTO orders VALUES ('1')", &[]).await.unwrap();
                tokio::task::yield_now().await;
                Ok::<_, StoreError>("placed".into())
            })
            .await;
            let ran = matches!(once.unwrap(), Once::Ran(_));
            tx.commit().await.unwrap();
            ran
        });
    }
    assert_eq!(running.join_all().await.into_iter().filter(|ran| *ran).count(), 1);
    assert_eq!(orders(&client).await, 1);
}
