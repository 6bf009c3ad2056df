//! Claims, inbox and outbox inside a transaction of `sqlx` that the caller owns.

use std::sync::Arc;

use crate::common::victim::say;
use crate::common::*;
use hapax_core::inbox::MessageStatus;
use hapax_core::queue::{Enqueued, LeaseRequest, QueueItem, QueueName};
use hapax_core::{
    Claimed, Claims, Expect, GiveBack, ManualClock, Once, OnceError, Operation, Put, Queue,
    Records, Step, StoreError, Tenant,
};
use hapax_sqlite::{HapaxSqlxTransaction, SqliteStore, SqlxTransaction, sqlx};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions};

/// A user's database behind a pool of `sqlx`, with hapax's tables beside the user's own.
async fn sqlx_shop(place: &Place) -> SqlitePool {
    drop(shop(place));
    pool(&place.file()).await
}

async fn pool(file: &std::path::Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(file).busy_timeout(PATIENT);
    SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap()
}

/// As [`sqlx_shop`], without waiting for locks.
async fn impatient(place: &Place) -> SqlitePool {
    let options =
        SqliteConnectOptions::new().filename(place.file()).busy_timeout(std::time::Duration::ZERO);
    SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap()
}

async fn orders(shop: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(shop).await.unwrap()
}

async fn order(shop: &mut SqliteConnection) -> Result<String, sqlx::Error> {
    sqlx::query("INSERT INTO orders VALUES ('bento')").execute(shop).await?;
    Ok("ordered".into())
}

/// The command `a`, which `command("a")` is the key of.
async fn once(mut hapax: SqlxTransaction<'_>) -> Result<Once<String>, OnceError<sqlx::Error>> {
    is_send(hapax.once(Operation("pay"), "a", "bento", |shop| Box::pin(order(shop)))).await
}

/// The futures can be awaited in a task.
fn is_send<T: Send>(future: T) -> T {
    future
}

fn ordered(replayed: bool) -> Once<String> {
    Once { value: "ordered".into(), replayed }
}

fn item(payload: &'static str) -> QueueItem {
    QueueItem::new(&Tenant::default(), "orders", payload).key("k").header("traceparent", "00-1")
}

async fn waiting(store: &SqliteStore) -> Vec<QueueItem> {
    let take = LeaseRequest::new(100, HOUR);
    let leased = store.lease(&QueueName::outbox(), &take).await.unwrap();
    leased.into_iter().map(|leased| leased.item).collect()
}

#[tokio::test]
async fn fault_39_sqlx_transaction_commits_all_or_nothing() {
    let (place, store) = Place::with_store();
    let shop = sqlx_shop(&place).await;
    for commits in [false, true] {
        let mut tx = shop.begin().await.unwrap();
        assert_eq!(once(tx.hapax()).await.unwrap(), ordered(false));
        assert_eq!(tx.hapax().receive("billing", "m").await.unwrap(), MessageStatus::First);
        assert_eq!(tx.hapax().receive("billing", "m").await.unwrap(), MessageStatus::Duplicate);
        let message = item(if commits { "yes" } else { "no" });
        assert_eq!(tx.hapax().enqueue(&message).await.unwrap(), Enqueued::Accepted);
        assert_eq!(tx.hapax().enqueue(&message).await.unwrap(), Enqueued::Duplicate);
        if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    let items = waiting(&store).await;
    assert_eq!(items.len(), 1, "{items:?}");
    assert_eq!((&items[0].payload[..], items[0].key.as_deref()), (&b"yes"[..], Some("k")));
    assert_eq!(items[0].headers["traceparent"], "00-1");
    let mut tx = shop.begin().await.unwrap();
    assert_eq!(once(tx.hapax()).await.unwrap(), ordered(true));
    assert_eq!(tx.hapax().receive("billing", "m").await.unwrap(), MessageStatus::Duplicate);
    assert_eq!(orders(&mut tx).await, 1);
}

#[tokio::test]
async fn fault_39_sqlx_once_replays_over_store_and_rusqlite() {
    use hapax_sqlite::HapaxTransaction as _;
    let place = Place::new();
    let shop = sqlx_shop(&place).await;
    let mut tx = shop.begin().await.unwrap();
    assert_eq!(once(tx.hapax()).await.unwrap(), ordered(false));
    let reused = tx.hapax().once(Operation("pay"), "a", "tea", |shop| Box::pin(order(shop))).await;
    assert!(matches!(reused, Err(OnceError::KeyReused)), "{reused:?}");
    tx.commit().await.unwrap();

    let commands = hapax_core::command::Commands::new(Arc::new(place.store()));
    let never = || async { Err::<String, _>("ran twice") };
    assert_eq!(commands.once(Operation("pay"), "a", "bento", never).await.unwrap(), ordered(true));
    let mut other = place.stranger();
    let tx = other.transaction().unwrap();
    let never = |_: &rusqlite::Connection| Err::<String, _>("ran twice");
    assert_eq!(tx.hapax().once(Operation("pay"), "a", "bento", never).unwrap(), ordered(true));
}

#[tokio::test]
async fn fault_39_sqlx_failed_effect_leaves_no_trace() {
    let place = Place::new();
    let shop = sqlx_shop(&place).await;
    let mut tx = shop.begin().await.unwrap();
    order(&mut tx).await.unwrap();
    let mut hapax = tx.hapax();
    let failed = hapax.once(Operation("pay"), "a", "bento", |shop| {
        Box::pin(async move {
            order(shop).await.unwrap();
            Err::<String, _>("no bento left")
        })
    });
    assert!(matches!(failed.await, Err(OnceError::Failed("no bento left"))));
    assert!(tx.hapax().look(&command("a")).await.unwrap().is_none());
    assert_eq!(orders(&mut tx).await, 1);
    assert_eq!(once(tx.hapax()).await.unwrap(), ordered(false));
    tx.commit().await.unwrap();
    assert_eq!(orders(&mut shop.acquire().await.unwrap()).await, 2);
}

#[tokio::test]
async fn fault_39_sqlx_duplicate_is_busy_while_the_first_is_open() {
    let place = Place::new();
    let (one, two) = (sqlx_shop(&place).await, impatient(&place).await);
    let mut first = one.begin().await.unwrap();
    assert_eq!(once(first.hapax()).await.unwrap(), ordered(false));
    let mut second = two.begin().await.unwrap();
    let told = once(second.hapax()).await;
    assert!(matches!(told, Err(OnceError::InProgress { .. })), "{told:?}");
    let told = second.hapax().receive("billing", "m").await.unwrap();
    assert_eq!(told, MessageStatus::Busy);
    let told = second.hapax().enqueue(&item("x")).await;
    assert!(matches!(told, Err(StoreError::Locked { .. })), "{told:?}");
    second.rollback().await.unwrap();

    // A snapshot from before the commit of another transaction cannot decide anything.
    let mut old = two.begin().await.unwrap();
    assert_eq!(orders(&mut old).await, 0);
    first.commit().await.unwrap();
    let told = once(old.hapax()).await;
    assert!(matches!(told, Err(OnceError::InProgress { .. })), "{told:?}");
    old.rollback().await.unwrap();
    let mut fresh = two.begin().await.unwrap();
    assert_eq!(once(fresh.hapax()).await.unwrap(), ordered(true));
    assert_eq!(orders(&mut fresh).await, 1);
}

/// SQLite ends a transaction by itself, as on a full disk, and `sqlx` does not notice.
#[tokio::test]
async fn fault_39_sqlx_transaction_that_sqlite_ended_is_refused() {
    let (place, store) = Place::with_store();
    let shop = sqlx_shop(&place).await;
    let mut tx = shop.begin().await.unwrap();
    order(&mut tx).await.unwrap();
    sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
    let told = tx.hapax().enqueue(&item("lost order")).await;
    assert!(matches!(told, Err(StoreError::Internal { .. })), "{told:?}");
    let told = once(tx.hapax()).await;
    let Err(OnceError::Store(error)) = told else { panic!("{told:?}") };
    assert!(matches!(error, StoreError::Internal { .. }), "{error:?}");
    drop(tx);
    assert_eq!(waiting(&store).await, []);
    assert_eq!(orders(&mut shop.acquire().await.unwrap()).await, 0);
}

#[tokio::test]
async fn fault_39_sqlx_transaction_supports_every_step() {
    let place = Place::new();
    let shop = sqlx_shop(&place).await;
    let mut tx = shop.begin().await.unwrap();
    let clock = ManualClock::default();
    let (a, b, r) = (command("a"), command("b"), record("r"));
    let held = ticket(tx.hapax().claim(&a, &ask()).await);
    let done = Step::Done(held.fence);
    assert_eq!(tx.hapax().extend(&a, &held.token, HOUR).await.unwrap(), done);
    assert_eq!(tx.hapax().settle(&a, &held.token, "x".into()).await.unwrap(), done);
    let again = tx.hapax().claim(&a, &ask()).await.unwrap();
    assert!(matches!(&again, Claimed::Settled { value, .. } if value == "x"), "{again:?}");
    let held = ticket(tx.hapax().claim(&b, &ask()).await);
    let back = tx.hapax().give_back(&b, &held.token, GiveBack::Forget).await.unwrap();
    assert_eq!(back, Step::Done(held.fence));
    assert!(tx.hapax().look(&b).await.unwrap().is_none());

    let put = tx.hapax().clock(&clock).put(&r, "1".into(), &Expect::Absent, Some(HOUR)).await;
    let Ok(Put::Stored { created: true, version }) = put else { panic!("{put:?}") };
    let found = tx.hapax().clock(&clock).get(&r).await.unwrap().unwrap();
    assert_eq!((found.value, found.expires_in), ("1".into(), Some(HOUR)));
    let put = tx.hapax().clock(&clock).put(&r, "2".into(), &Expect::Absent, None).await.unwrap();
    assert_eq!(put, Put::Conflict);
    let expect = Expect::Version(version);
    let put = tx.hapax().clock(&clock).put(&r, "2".into(), &expect, None).await.unwrap();
    assert!(matches!(put, Put::Stored { created: false, .. }), "{put:?}");
    clock.advance(HOUR);
    assert!(tx.hapax().clock(&clock).get(&r).await.unwrap().is_none(), "its TTL is over");
    let _ = tx.hapax().put(&r, "3".into(), &Expect::Any, None).await.unwrap();
    let _ = tx.hapax().delete(&r, &Expect::Any).await.unwrap();
    assert!(tx.hapax().get(&r).await.unwrap().is_none());
}

/// The waiters of a store hear of the commit, and read what it wrote.
#[tokio::test(flavor = "multi_thread")]
async fn fault_39_store_sees_the_commit_of_an_sqlx_transaction() {
    let (place, store) = Place::with_store();
    let shop = sqlx_shop(&place).await;
    let key = command("a");
    let held = ticket(store.claim(&key, &ask()).await);
    let mut watch = store.watch(&key);
    let mut tx = shop.begin().await.unwrap();
    let _ = tx.hapax().settle(&key, &held.token, "inside".into()).await.unwrap();
    let _ = tx.hapax().put(&record("r"), "1".into(), &Expect::Any, None).await.unwrap();
    tx.commit().await.unwrap();
    let heard = tokio::time::timeout(PATIENT, async {
        while !matches!(store.claim(&key, &ask()).await, Ok(Claimed::Settled { .. })) {
            watch.changed(std::time::Duration::MAX).await;
        }
    });
    heard.await.expect("a hint");
    assert_eq!(store.get(&record("r")).await.unwrap().unwrap().value, "1");
}

/// The process that is killed: creates orders for ever, each with its claim and its message, and says
/// which were committed.
#[tokio::test]
#[ignore = "the process that the test below kills"]
async fn victim() {
    let file = std::env::var("HAPAX_TEST_FILE").unwrap();
    let shop = pool(file.as_ref()).await;
    for n in 0_u64.. {
        let key = format!("{}-{n}", std::process::id());
        let mut tx = shop.begin().await.unwrap();
        let mut hapax = tx.hapax();
        let run = hapax.once(Operation("pay"), &key, "bento", |shop| Box::pin(order(shop)));
        assert!(!run.await.unwrap().replayed);
        tx.hapax().enqueue(&item("ordered")).await.unwrap();
        say(format_args!("begun {key}"));
        tx.commit().await.unwrap();
        say(format_args!("committed {key}"));
    }
}

#[tokio::test]
async fn fault_39_killed_sqlx_process_leaves_whole_transactions() {
    let (place, store) = Place::with_store();
    let shop = sqlx_shop(&place).await;
    let mut committed = Vec::new();
    for round in 0..hapax_conformance::scale(4) as usize {
        // Lines of `begun` and `committed` alternate: both moments are hit.
        let said = crate::common::victim::kill_after(
            "sqlx_transactions::victim",
            &place,
            5 + round * 3 % 8,
        );
        let keys = said.iter().filter_map(|line| line.strip_prefix("committed "));
        committed.extend(keys.map(str::to_owned));
    }
    assert!(!committed.is_empty());
    let mut shop = shop.acquire().await.unwrap();
    let (orders, items) = (orders(&mut shop).await, waiting_items(&mut shop).await);
    assert_eq!(orders, items, "an order without its message, or a message without its order");
    let claims: i64 = sqlx::query_scalar("SELECT count(*) FROM hapax_claims WHERE phase = 1")
        .fetch_one(&mut *shop)
        .await
        .unwrap();
    assert_eq!(orders, claims, "an order without its claim, or a claim without its order");
    assert!(orders >= i64::try_from(committed.len()).unwrap());
    for key in committed {
        let view = store.look(&command(&key)).await.unwrap();
        assert!(view.is_some(), "{key} was committed, and is forgotten");
    }
}

async fn waiting_items(shop: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM hapax_outbox").fetch_one(shop).await.unwrap()
}
