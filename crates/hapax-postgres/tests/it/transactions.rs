//! Claims inside the application's own transactions.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::command::Commands;
use hapax_core::{
    ClaimRequest, Claimed, Claims, Expect, GiveBack, Key, OnUnknown, Once, OnceError, Operation,
    Put, Records, Step, StoreError, Tenant, Ticket,
};
use hapax_postgres::{HapaxTransaction, PostgresConfig, PostgresStore};
use tokio::time::timeout;
use tokio_postgres::{Client, IsolationLevel, Transaction};

use crate::{LONG, application, ask, client, granted, key, open, retry_timeouts};

async fn orders(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM orders", &[]).await.unwrap().get(0)
}

/// Places an order, or returns the answer of the transaction that did. `key("order")` is its key.
async fn place_order(tx: &mut Transaction<'_>) -> Result<Once<String>, OnceError<StoreError>> {
    tx.hapax()
        .once(Operation("test"), "order", "bento", |tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO orders VALUES ('1')", &[]).await.unwrap();
                tokio::task::yield_now().await;
                Ok("placed".to_owned())
            })
        })
        .await
}

async fn granted_in(tx: &mut impl HapaxTransaction, key: &Key, ask: &ClaimRequest) -> Ticket {
    match tx.hapax().claim(key, ask).await.expect("the store answers") {
        Claimed::Granted { ticket, .. } => ticket,
        other => panic!("expected a grant, got {other:?}"),
    }
}

async fn is_busy_in(tx: &mut impl HapaxTransaction, key: &Key, ask: &ClaimRequest) {
    let answer = tx.hapax().claim(key, ask).await.unwrap();
    assert!(matches!(answer, Claimed::Busy { .. }), "{answer:?}");
}

/// The answer comes at once: a call that waited for the lock would time out, because it is not released.
async fn is_busy(claims: &dyn Claims, key: &Key, ask: &ClaimRequest) {
    let answer = claims.claim(key, ask).await.unwrap();
    assert!(matches!(answer, Claimed::Busy { .. }), "{answer:?}");
}

#[tokio::test]
async fn once_commits_claim_and_row_together() {
    let (url, mut client) = application("tx_commit").await;
    for replayed in [false, true] {
        let mut tx = client.transaction().await.unwrap();
        let once = place_order(&mut tx).await.unwrap();
        assert_eq!(once, Once { value: "placed".to_owned(), replayed });
        tx.commit().await.unwrap();
        assert_eq!(orders(&client).await, 1);
    }
    // The commands of a plain store on the same database replay the same answer.
    let commands = Commands::new(Arc::new(open(&url)));
    let never = || async { Err::<String, _>("ran twice") };
    let once = commands.once(Operation("test"), "order", "bento", never).await.unwrap();
    assert_eq!(once, Once { value: "placed".to_owned(), replayed: true });
}

#[tokio::test]
async fn once_rolls_back_claim_and_row_together() {
    let (url, mut client) = application("tx_rollback").await;
    let mut tx = client.transaction().await.unwrap();
    let failed: Result<Once<()>, _> = tx
        .hapax()
        .once(Operation("test"), "order", "bento", |tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO orders VALUES ('1')", &[]).await.unwrap();
                Err("the work failed")
            })
        })
        .await;
    assert!(matches!(failed, Err(OnceError::Failed("the work failed"))));
    drop(tx);
    assert_eq!(orders(&client).await, 0);
    let store = open(&url);
    assert_eq!(store.look(&key("order")).await.unwrap(), None);
    granted(&store, &key("order"), &ask()).await;
}

#[tokio::test]
async fn transaction_duplicate_is_busy_at_once() {
    let (url, mut first) = application("tx_busy").await;
    let mut second = client(&url).await;
    let store = open(&url);
    let mut tx = first.transaction().await.unwrap();
    let ticket = granted_in(&mut tx, &key("order"), &ask()).await;

    let mut other = second.transaction().await.unwrap();
    is_busy_in(&mut other, &key("order"), &ask()).await;
    is_busy(&store, &key("order"), &ask()).await;
    // Other keys in the same batch are not held up either.
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
    // The second transaction is still usable.
    granted_in(&mut other, &key("another"), &ask()).await;
    other.commit().await.unwrap();

    is_busy_in(&mut tx, &key("order"), &ask()).await;
    let settled = tx.hapax().settle(&key("order"), &ticket.token, "v".into()).await.unwrap();
    assert_eq!(settled, Step::Done(ticket.fence));
    tx.commit().await.unwrap();
    let answer = store.claim(&key("order"), &ask()).await.unwrap();
    assert!(matches!(answer, Claimed::Settled { .. }));
}

#[tokio::test]
async fn transaction_takeover_blocks_no_other_claim() {
    let (url, mut first) = application("tx_takeover").await;
    let store = open(&url);
    let mut brief = ask().on_unknown(OnUnknown::TakeOver);
    brief.lease = Duration::from_millis(1);
    let late = granted(&store, &key("order"), &brief).await;
    tokio::time::sleep(Duration::from_millis(20)).await;

    let mut tx = first.transaction().await.unwrap();
    let taken = granted_in(&mut tx, &key("order"), &brief.with_fresh_token()).await;
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
async fn step_behind_an_open_transaction_is_locked_in_time() {
    let (url, mut first) = application("tx_locked").await;
    let limit = Duration::from_secs(6);
    let store = PostgresStore::open(PostgresConfig::new(&url).timeout(limit)).unwrap();
    let ticket = granted(&open(&url), &key("order"), &ask()).await;
    let record = Key::record(&Tenant::default(), "r").unwrap();

    let mut tx = first.transaction().await.unwrap();
    let mut hapax = tx.hapax();
    let _ = hapax.extend(&key("order"), &ticket.token, LONG).await.unwrap();
    let _ = hapax.put(&record, "in".into(), &Expect::Absent, None).await.unwrap();
    let order = key("order");
    let settle = async || store.settle(&order, &ticket.token, "v".into()).await;
    let put = async || store.put(&record, "out".into(), &Expect::Any, None).await;
    // The transaction does not end: without a limit they would wait for ever.
    let both = async { tokio::join!(retry_timeouts(settle), retry_timeouts(put)) };
    let (settled, stored) = timeout(20 * limit, both).await.expect("answers in time");
    assert!(matches!(settled, Err(StoreError::Locked { .. })), "{settled:?}");
    assert!(matches!(stored, Err(StoreError::Locked { .. })), "{stored:?}");
    tx.rollback().await.unwrap();
    assert_eq!(retry_timeouts(settle).await.unwrap(), Step::Done(ticket.fence));
    let stored = open(&url).put(&record, "out".into(), &Expect::Any, None).await.unwrap();
    assert!(matches!(stored, Put::Stored { created: true, .. }), "{stored:?}");
}

#[tokio::test]
async fn transaction_supports_records_and_steps() {
    let (url, mut first) = application("tx_steps").await;
    let record = Key::record(&Tenant::default(), "r").unwrap();
    let mut tx = first.transaction().await.unwrap();
    let ticket = granted_in(&mut tx, &key("a"), &ask()).await;
    let mut hapax = tx.hapax();
    assert_eq!(
        hapax.extend(&key("a"), &ticket.token, LONG).await.unwrap(),
        Step::Done(ticket.fence)
    );
    assert!(hapax.look(&key("a")).await.unwrap().is_some());
    let back = hapax.give_back(&key("a"), &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(back, Step::Done(ticket.fence));
    assert!(granted_in(&mut tx, &key("a"), &ask()).await.fence > ticket.fence);
    let mut hapax = tx.hapax();
    let _ = hapax.put(&record, "v".into(), &Expect::Absent, None).await.unwrap();
    assert_eq!(hapax.get(&record).await.unwrap().unwrap().value, "v");
    assert_eq!(open(&url).get(&record).await.unwrap(), None);
    let _ = hapax.delete(&record, &Expect::Any).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(open(&url).get(&record).await.unwrap(), None);
}

#[tokio::test]
async fn serializable_transaction_reports_a_lost_race() {
    let (url, mut first) = application("tx_serializable").await;
    let store = open(&url);
    let level = IsolationLevel::Serializable;
    let mut tx = first.build_transaction().isolation_level(level).start().await.unwrap();
    // The snapshot is taken by the first statement.
    tx.query("SELECT * FROM orders", &[]).await.unwrap();
    granted(&store, &key("order"), &ask()).await;
    let lost = tx.hapax().claim(&key("order"), &ask()).await;
    assert!(matches!(lost, Err(StoreError::Locked { .. })), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn once_runs_in_one_of_many_transactions() {
    let (url, client) = application("tx_race").await;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..24 {
        let url = url.clone();
        running.spawn(async move {
            let mut own = crate::client(&url).await;
            let mut tx = own.transaction().await.unwrap();
            let ran = match place_order(&mut tx).await {
                Ok(once) => !once.replayed,
                Err(OnceError::InProgress { .. }) => false,
                Err(other) => panic!("{other:?}"),
            };
            tx.commit().await.unwrap();
            ran
        });
    }
    assert_eq!(running.join_all().await.into_iter().filter(|ran| *ran).count(), 1);
    assert_eq!(orders(&client).await, 1);
}
