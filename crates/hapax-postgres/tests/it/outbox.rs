//! Outbox, inbox and cursors inside the application's own transactions, with either driver.

use hapax_core::inbox::{Inbox, MessageStatus};
use hapax_core::queue::{Enqueued, LeaseRequest, Queue, QueueItem, QueueName};
use hapax_core::{Expect, Key, Put, Records, StoreError, Tenant};
use hapax_postgres::{HapaxTransaction, PostgresStore};
use sqlx::{Connection, PgConnection};
use std::sync::Arc;
use std::time::Duration;

use crate::{LONG, SERVER, application, client, open};

fn item(text: &'static str) -> QueueItem {
    QueueItem::new(&Tenant::default(), "orders", text).key("order-1").header("traceparent", "00-1")
}

async fn waiting(store: &PostgresStore) -> Vec<QueueItem> {
    let take = LeaseRequest::new(100, LONG);
    let leased = store.lease(&QueueName::outbox(), &take).await.unwrap();
    leased.into_iter().map(|leased| leased.item).collect()
}

async fn once(tx: &mut impl HapaxTransaction, message: &str) -> MessageStatus {
    tx.hapax().receive("billing", message).await.unwrap()
}

/// The work of a consumer: note the message, enqueue a message of its own, store its cursor.
async fn consume(
    tx: &mut impl HapaxTransaction,
    message: &str,
    out: &QueueItem,
    cursor: &Key,
) -> MessageStatus {
    let seen = once(tx, message).await;
    if seen == MessageStatus::First {
        assert_eq!(tx.hapax().enqueue(out).await.unwrap(), Enqueued::Accepted);
        assert_eq!(tx.hapax().enqueue(out).await.unwrap(), Enqueued::Duplicate);
        let put = tx.hapax().put(cursor, message.to_owned().into(), &Expect::Absent, None).await;
        assert!(matches!(put, Ok(Put::Stored { created: true, .. })), "{put:?}");
        let conflict = tx.hapax().put(cursor, "x".into(), &Expect::Absent, None).await;
        assert_eq!(conflict.unwrap(), Put::Conflict);
    }
    seen
}

/// One test for each driver: `$begin` begins a transaction, and `$create` runs a statement of the
/// application's own in it.
macro_rules! transaction_is_all_or_nothing {
    ($test:ident, $connect:expr, $begin:ident, |$tx:ident| $create:expr) => {
        #[tokio::test]
        async fn $test() {
            let (url, _) = application(stringify!($test)).await;
            let (store, mut own) = (open(&url), $connect(&url).await);
            let cursor = Key::record(&Tenant::default(), "cursor").unwrap();
            let out = item("1");
            for (commits, expected) in [
                (false, MessageStatus::First),
                (true, MessageStatus::First),
                (true, MessageStatus::Duplicate),
            ] {
                let mut $tx = own.$begin().await.unwrap();
                $create.await.unwrap();
                assert_eq!(consume(&mut $tx, "m1", &out, &cursor).await, expected);
                let again = once(&mut $tx, "m1").await;
                assert_eq!(again, MessageStatus::Duplicate, "it knows what it did itself");
                if commits {
                    $tx.commit().await.unwrap();
                    continue;
                }
                $tx.rollback().await.unwrap();
                assert_eq!(waiting(&store).await, [], "rolled back, and never handed out");
                assert_eq!(store.get(&cursor).await.unwrap(), None);
            }
            assert_eq!(waiting(&store).await, [out]);
            assert_eq!(store.get(&cursor).await.unwrap().unwrap().value, "m1");
        }
    };
}

const CREATE: &str = "CREATE TABLE IF NOT EXISTS invoices (id text)";

transaction_is_all_or_nothing!(
    tokio_postgres_transaction_is_all_or_nothing,
    client,
    transaction,
    |tx| tx.batch_execute(CREATE)
);
transaction_is_all_or_nothing!(
    sqlx_transaction_is_all_or_nothing,
    async |url| PgConnection::connect(url).await.unwrap(),
    begin,
    |tx| sqlx::query(CREATE).execute(&mut *tx)
);

#[tokio::test]
async fn sqlx_errors_map_to_store_errors() {
    let url = SERVER.database("outbox_sqlx_errors");
    let mut own = PgConnection::connect(&url).await.unwrap();
    let mut tx = own.begin().await.unwrap();
    let error = tx.hapax().enqueue(&item("1")).await.unwrap_err();
    assert!(error.to_string().contains("42883"), "{error}");
}

/// A duplicate never waits for the other's open transaction, with either driver.
#[tokio::test]
async fn inbox_message_in_an_open_transaction_is_busy() {
    let (url, mut first) = application("inbox_busy").await;
    let mut second = client(&url).await;
    let mut third = PgConnection::connect(&url).await.unwrap();
    let mut open_one = first.transaction().await.unwrap();
    assert_eq!(once(&mut open_one, "m").await, MessageStatus::First);
    let mut other = second.transaction().await.unwrap();
    assert_eq!(once(&mut other, "m").await, MessageStatus::Busy);
    assert_eq!(once(&mut other, "n").await, MessageStatus::First, "it can go on");
    let mut with_sqlx = third.begin().await.unwrap();
    assert_eq!(once(&mut with_sqlx, "m").await, MessageStatus::Busy);
    open_one.commit().await.unwrap();
    assert_eq!(once(&mut other, "m").await, MessageStatus::Duplicate);
    assert_eq!(once(&mut with_sqlx, "m").await, MessageStatus::Duplicate);
}

/// The inbox with a transaction and the one without are the same inbox.
#[tokio::test]
async fn inbox_is_shared_with_the_store() {
    let (url, mut own) = application("inbox_both").await;
    let elsewhere = Inbox::new(Arc::new(open(&url)));
    let handled = elsewhere.once("billing", "out", |_| async { Ok::<_, std::io::Error>(()) }).await;
    handled.unwrap();
    let mut tx = own.transaction().await.unwrap();
    assert_eq!(once(&mut tx, "out").await, MessageStatus::Duplicate);
    assert_eq!(once(&mut tx, "in").await, MessageStatus::First);
    tx.commit().await.unwrap();
    let handled = elsewhere.once("billing", "in", |_| async { Ok::<_, std::io::Error>(()) }).await;
    assert!(handled.unwrap().replayed);
    // The same id for another consumer or tenant is another message.
    let mut tx = own.transaction().await.unwrap();
    let other = Tenant::new("other").unwrap();
    assert_eq!(
        tx.hapax().tenant(&other).receive("billing", "in").await.unwrap(),
        MessageStatus::First
    );
    let mailing = tx.hapax().receive("mailing", "in").await.unwrap();
    assert_eq!(mailing, MessageStatus::First);
    // A message whose retention is over is new again.
    for _ in 0..2 {
        let mut brief = tx.hapax().tenant(&other).retention(Duration::from_millis(1));
        assert_eq!(brief.receive("billing", "brief").await.unwrap(), MessageStatus::First);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Of many consumers of one message, in transactions of their own, one has its effect.
#[tokio::test(flavor = "multi_thread")]
async fn inbox_concurrent_deliveries_have_one_first() {
    let (url, _) = application("inbox_race").await;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let url = url.clone();
        running.spawn(async move {
            let mut own = client(&url).await;
            let mut firsts = 0;
            for n in 0..20 {
                let mut tx = own.transaction().await.unwrap();
                firsts += u32::from(once(&mut tx, &format!("m{n}")).await == MessageStatus::First);
                tx.commit().await.unwrap();
            }
            firsts
        });
    }
    assert_eq!(running.join_all().await.into_iter().sum::<u32>(), 20);
}

/// After the commit a hint wakes who waits for work on another node.
#[tokio::test(flavor = "multi_thread")]
async fn wake_queue_wakes_a_relay_on_another_node() {
    let (url, mut own) = application("outbox_hint").await;
    let (here, there) = (open(&url), open(&url));
    let mut watch = there.arrivals(&QueueName::outbox());
    let mut tx = own.transaction().await.unwrap();
    tx.hapax().enqueue(&item("1")).await.unwrap();
    tx.commit().await.unwrap();
    // Repeated, because the other node may not listen yet.
    let mut woken = false;
    for _ in 0..120 {
        here.wake_queue(&QueueName::outbox());
        let heard = tokio::time::timeout(Duration::from_millis(500), watch.changed(LONG)).await;
        woken = heard.is_ok();
        if woken {
            break;
        }
    }
    assert!(woken, "nobody woke it");
    assert_eq!(waiting(&there).await.len(), 1);
}

/// The second of two transactions that enqueue the same item once waited for the first one's end, and
/// was aborted by its timeout.
#[tokio::test]
async fn fault_15_duplicate_id_in_a_transaction_is_told() {
    let (url, mut first) = application("outbox_same_id").await;
    let mut second = client(&url).await;
    let mut third = PgConnection::connect(&url).await.unwrap();
    let out = item("1");
    let patient = Duration::from_secs(30);
    let mut tx = first.transaction().await.unwrap();
    assert_eq!(tx.hapax().enqueue(&out).await.unwrap(), Enqueued::Accepted);

    let mut told = second.transaction().await.unwrap();
    let answer = told.hapax().timeout(patient).enqueue(&out).await;
    assert!(matches!(answer, Err(StoreError::Locked { .. })), "{answer:?}");
    told.execute("INSERT INTO orders (id) VALUES ('second')", &[]).await.unwrap();
    told.commit().await.unwrap();
    let mut told = third.begin().await.unwrap();
    let answer = told.hapax().timeout(patient).enqueue(&out).await;
    assert!(matches!(answer, Err(StoreError::Locked { .. })), "{answer:?}");
    sqlx::query("INSERT INTO orders (id) VALUES ('third')").execute(&mut *told).await.unwrap();
    told.commit().await.unwrap();

    tx.commit().await.unwrap();
    let mut tx = second.transaction().await.unwrap();
    assert_eq!(tx.hapax().enqueue(&out).await.unwrap(), Enqueued::Duplicate);
    tx.commit().await.unwrap();
    let orders = "SELECT string_agg(id, ' ' ORDER BY id) FROM orders";
    assert_eq!(SERVER.psql_in("outbox_same_id", orders), "second third");
}
