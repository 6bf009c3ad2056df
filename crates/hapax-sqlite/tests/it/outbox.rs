//! Outbox, inbox and cursor inside a transaction of the user's own, and plain SQL from any language.

use std::time::Duration;

use crate::common::*;
use hapax_core::inbox::{Inbox, InboxConfig, MessageStatus, Received};
use hapax_core::log::{LogRetention, TailPosition};
use hapax_core::queue::{Enqueued, LeaseRequest, LeasedItem, QueueItem, QueueName, Resolved};
use hapax_core::{Clock, Expect, Log, Put, Queue, Records, SystemClock, Tenant, Version};
use hapax_sqlite::rusqlite::{Connection, TransactionBehavior, params};
use hapax_sqlite::{HapaxTransaction, SqliteStore};

fn item(payload: &'static str) -> QueueItem {
    QueueItem::new(&Tenant::default(), "orders", payload)
}

async fn lease(store: &SqliteStore, at_most: usize) -> (LeaseRequest, Vec<LeasedItem>) {
    let take = LeaseRequest::new(at_most, HOUR);
    let leased = store.lease(&QueueName::outbox(), &take).await.unwrap();
    (take, leased)
}

fn payloads(leased: &[LeasedItem]) -> Vec<String> {
    leased.iter().map(|l| String::from_utf8_lossy(&l.item.payload).into_owned()).collect()
}

#[tokio::test]
async fn outbox_plain_insert_is_an_item() {
    let place = Place::new();
    let shop = shop(&place);
    shop.execute_batch(
        r#"INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{"n":1}');
           INSERT INTO hapax_outbox (topic, payload, id, tenant, content_type, headers) VALUES
               ('orders', x'00ff', '0190F000-0000-7000-8000-00000000000A', 'acme/ab', 'a/b',
                '{"a":"1","n":2}')"#,
    )
    .unwrap();
    let (_, leased) = lease(&place.store(), 10).await;
    let (text, bytes) = (&leased[0], &leased[1]);
    assert_eq!((&*text.item.topic, text.item.key.as_deref()), ("orders", Some("order-1")));
    assert_eq!(text.item.payload, r#"{"n":1}"#);
    assert_eq!((text.item.tenant.as_str(), text.item.content_type.as_deref()), ("default", None));
    assert_eq!(text.item.id.0.get_version_num(), 4);
    assert!(text.age < HOUR, "the engine's clock is the machine's");
    assert_eq!(bytes.item.id.to_string(), "0190f000-0000-7000-8000-00000000000a");
    assert_eq!((&bytes.item.payload[..], bytes.item.tenant.as_str()), (&[0, 255][..], "acme/ab"));
    let headers = [("a".into(), "1".into()), ("n".into(), "2".into())];
    assert_eq!(bytes.item.headers, headers.into());
}

#[test]
fn outbox_refuses_rows_that_cannot_be_delivered() {
    let place = Place::new();
    let shop = shop(&place);
    for wrong in [
        "(topic, payload, id) VALUES ('t', 'x', 'order-1')",
        "(topic, payload, headers) VALUES ('t', 'x', '[]')",
        "(topic, payload, headers) VALUES ('t', 'x', '{')",
        "(topic, payload, tenant) VALUES ('t', 'x', '')",
        "(topic, payload, queue) VALUES ('t', 'x', 'a b')",
        "(topic, payload) VALUES ('', 'x')",
        "(topic, payload) VALUES ('t', 7)",
        "(topic) VALUES ('t')",
    ] {
        let refused = shop.execute(&format!("INSERT INTO hapax_outbox {wrong}"), []);
        assert!(refused.is_err(), "{wrong}");
    }
}

/// A row that could not be read would stop the whole queue.
#[tokio::test]
async fn outbox_hands_out_unusual_rows_with_their_neighbours() {
    let (place, store) = Place::with_store();
    let shop = shop(&place);
    let deep = format!(r#"{{"deep":{}{},"ok":"1"}}"#, "[".repeat(200), "]".repeat(200));
    shop.execute_batch(&format!(
        r#"INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', CAST(x'ff' AS TEXT), '1'),
               ('t', CAST(x'fe' AS TEXT), '2'), ('t', CAST(x'ff' AS TEXT), '3');
           INSERT INTO hapax_outbox (topic, payload, headers) VALUES ('t', '4', '{deep}'),
               ('t', '5', '{{"half":"\ud800","huge":1e999,"ok":"1"}}');
           INSERT INTO hapax_outbox (topic, payload, created_at, attempts) VALUES ('t', '6', -1, -1);
           INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', 'k', 'neighbour')"#
    ))
    .unwrap();
    let odd_id = "INSERT INTO hapax_outbox (id, topic, payload)
        VALUES ('01234567-89ab-cdef-0123-456789abcdef' || char(0) || 'b', 't', 'odd')";
    assert!(shop.execute(odd_id, []).is_err(), "it could not be handed out");
    let (take, leased) = lease(&store, 10).await;
    assert_eq!(payloads(&leased), ["1", "2", "3", "4", "5", "6", "neighbour"]);
    assert!(leased[3..5].iter().all(|row| row.item.headers["ok"] == "1"), "{leased:?}");
    let ids: Vec<_> = leased.iter().map(|row| row.item.id).collect();
    let acked = store.ack(&QueueName::outbox(), &take.token, &ids, HOUR).await.unwrap();
    assert_eq!(acked, [Resolved::Done; 7]);
}

#[tokio::test]
async fn outbox_plain_rows_keep_the_order_of_their_key() {
    let (place, store) = Place::with_store();
    let shop = shop(&place);
    for payload in ["1", "2", "3", "4"] {
        let sql = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ('t', 'k', ?1)";
        shop.execute(sql, params![payload]).unwrap();
    }
    assert_eq!(payloads(&lease(&store, 1).await.1), ["1"]);
    assert!(lease(&store, 10).await.1.is_empty());
    // An operator deletes the one in flight by hand, and another one behind it.
    shop.execute("DELETE FROM hapax_outbox WHERE payload IN ('1', '3')", []).unwrap();
    assert_eq!(payloads(&lease(&store, 10).await.1), ["2", "4"]);
}

#[tokio::test]
async fn outbox_plain_row_waits_for_deliver_after() {
    let (place, store) = Place::with_store();
    let shop = shop(&place);
    let now = i64::try_from(SystemClock.now().0).unwrap();
    let sql = "INSERT INTO hapax_outbox (topic, payload, deliver_after) VALUES ('t', ?1, ?2)";
    shop.execute(sql, params!["later", now + 3_600_000]).unwrap();
    shop.execute(sql, params!["now", now]).unwrap();
    assert_eq!(payloads(&lease(&store, 10).await.1), ["now"]);
}

#[tokio::test]
async fn outbox_rolled_back_item_is_never_delivered() {
    let (place, store) = Place::with_store();
    let mut shop = shop(&place);
    for (payload, commits) in [("no", false), ("yes", true)] {
        let tx = shop.transaction().unwrap();
        let message = item(payload).key("k");
        assert_eq!(tx.hapax().enqueue(&message).unwrap(), Enqueued::Accepted);
        assert_eq!(tx.hapax().enqueue(&message).unwrap(), Enqueued::Duplicate);
        if commits { tx.commit().unwrap() } else { tx.rollback().unwrap() }
    }
    let (take, leased) = lease(&store, 10).await;
    assert_eq!(payloads(&leased), ["yes"]);
    let ids = [leased[0].item.id];
    let acked = store.ack(&QueueName::outbox(), &take.token, &ids, HOUR).await.unwrap();
    assert_eq!(acked, [Resolved::Done]);
}

#[tokio::test(flavor = "multi_thread")]
async fn outbox_commit_wakes_a_relay() {
    let (place, store) = Place::with_store();
    let mut shop = shop(&place);
    let mut arrivals = store.arrivals(&QueueName::outbox());
    let tx = shop.transaction().unwrap();
    tx.hapax().enqueue(&item("x")).unwrap();
    tx.commit().unwrap();
    let heard = tokio::time::timeout(PATIENT, async {
        while lease(&store, 1).await.1.is_empty() {
            arrivals.changed(Duration::MAX).await;
        }
    });
    heard.await.expect("a hint");
}

fn receive(shop: &mut Connection, message: &str) -> MessageStatus {
    let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let seen = tx.hapax().retention(HOUR).receive("billing", message).unwrap();
    tx.commit().unwrap();
    seen
}

#[tokio::test]
async fn inbox_second_delivery_is_a_duplicate() {
    let (place, store) = Place::with_store();
    let mut shop = shop(&place);
    let tx = shop.transaction().unwrap();
    let seen = tx.hapax().retention(HOUR).receive("billing", "m").unwrap();
    assert_eq!(seen, MessageStatus::First);
    tx.rollback().unwrap();
    assert_eq!(receive(&mut shop, "m"), MessageStatus::First);
    assert_eq!(receive(&mut shop, "m"), MessageStatus::Duplicate);

    let inbox = Inbox::new(std::sync::Arc::new(store));
    let seen = inbox.begin("billing", "m", &InboxConfig::default()).await.unwrap();
    assert_eq!(seen, Received::Duplicate);
    let seen = inbox.begin("mailing", "m", &InboxConfig::default()).await.unwrap();
    assert!(matches!(seen, Received::First { .. }), "another consumer has its own");
}

#[tokio::test]
async fn inbox_message_in_progress_is_busy_then_taken_over() {
    let (place, store) = Place::with_store();
    let mut shop = shop(&place);
    let inbox = Inbox::new(std::sync::Arc::new(store));
    let seen = inbox.begin("billing", "m", &InboxConfig::default()).await.unwrap();
    let Received::First { ticket, .. } = seen else { panic!("{seen:?}") };
    assert_eq!(receive(&mut shop, "m"), MessageStatus::Busy);
    inbox.give_back("billing", "m", &ticket.token).await.unwrap();
    assert_eq!(receive(&mut shop, "m"), MessageStatus::First);

    let brief = InboxConfig::default().lease(Duration::from_millis(1));
    inbox.begin("billing", "abandoned", &brief).await.unwrap();
    while receive(&mut shop, "abandoned") != MessageStatus::First {
        std::thread::yield_now();
    }
}

#[test]
fn inbox_message_in_an_open_transaction_is_busy() {
    let place = Place::new();
    let (mut one, mut two) = (shop(&place), shop(&place));
    let first = one.transaction().unwrap();
    assert_eq!(first.hapax().receive("c", "m").unwrap(), MessageStatus::First);
    let second = two.transaction().unwrap();
    let told = second.hapax().receive("c", "m").unwrap();
    assert_eq!(told, MessageStatus::Busy);
}

/// A consumer of the bus: effect and position in one transaction, so that each entry counts once
/// although two consumers believe that the partition is theirs.
#[tokio::test]
async fn position_put_with_the_effect_counts_each_entry_once() {
    let (place, store) = Place::with_store();
    let mut shop = shop(&place);
    shop.execute_batch("CREATE TABLE effects (entry TEXT)").unwrap();
    let partition = event("a", 0).job.partition(store.partitions());
    let events: Vec<_> = (0..20).map(|seq| event("a", seq)).collect();
    let _ = store.append(&events, &LogRetention::default()).await.unwrap();

    let cursor = record("cursor");
    let mut consumers =
        [(TailPosition::start(), Expect::Absent), (TailPosition::start(), Expect::Absent)];
    let mut turns = 0;
    loop {
        let mine = &mut consumers[turns % 2];
        turns += 1;
        let tail = store.tail(&[(partition, mine.0.clone())], 3).await.unwrap().remove(0);
        if tail.changes.is_empty() {
            break;
        }
        let tx = shop.transaction().unwrap();
        for change in &tail.changes {
            let entry = format!("{}-{}", change.job.name(), change.offset);
            tx.execute("INSERT INTO effects VALUES (?1)", [entry]).unwrap();
        }
        let place = tail.next.as_str().to_owned();
        match tx.hapax().put(&cursor, place.into(), &mine.1, None).unwrap() {
            Put::Stored { version, .. } => {
                *mine = (tail.next, Expect::Version(version));
                tx.commit().unwrap();
            }
            // The other consumer is ahead: nothing of this was stored, and its position is the next one.
            Put::Conflict => {
                tx.rollback().unwrap();
                let found = store.get(&cursor).await.unwrap().unwrap();
                let place = TailPosition::new(std::str::from_utf8(&found.value).unwrap());
                *mine = (place, Expect::Version(Version::new(found.version.as_str())));
            }
        }
    }
    let count = |sql| -> i64 { shop.query_row(sql, [], |row| row.get(0)).unwrap() };
    assert_eq!(count("SELECT count(*) FROM effects"), 20);
    assert_eq!(count("SELECT count(DISTINCT entry) FROM effects"), 20);
}
