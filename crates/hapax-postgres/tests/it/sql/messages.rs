//! `hapax_receive` and `hapax_enqueue`.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::inbox::{Inbox, InboxConfig, Received};
use hapax_core::queue::{LeaseRequest, QueueName};
use hapax_core::{Queue, Tenant};
use tokio_postgres::IsolationLevel;

use super::{LEVELS, PATIENT, error_code, is_true, lease_runs_out, someone_waits, start};
use crate::{application, client, open};

#[tokio::test]
async fn sql_receive_is_true_once_for_each_consumer() {
    let (url, own) = application("sql_receive").await;
    assert!(is_true(&own, "hapax_receive('billing', 'm')").await);
    assert!(!is_true(&own, "hapax_receive('billing', 'm')").await);
    assert!(is_true(&own, "hapax_receive('mailing', 'm')").await);
    assert!(is_true(&own, "hapax_receive('billing', 'm', tenant => 'other')").await);
    // The inbox of the store and of the HTTP API is the same.
    let inbox = Inbox::new(Arc::new(open(&url)));
    let config = InboxConfig::default();
    let received = inbox.begin("billing", "m", &config).await.unwrap();
    assert!(matches!(received, Received::Duplicate), "{received:?}");
    let received = inbox.begin("billing", "elsewhere", &config).await.unwrap();
    let Received::First { ticket, .. } = received else { panic!("{received:?}") };
    // Neither first nor a duplicate: an error keeps the caller from acknowledging it.
    let sql = "SELECT hapax_receive('billing', 'elsewhere')";
    assert_eq!(error_code(&own, sql).await, "55P03");
    inbox.give_back("billing", "elsewhere", &ticket.token).await.unwrap();
    assert!(is_true(&own, "hapax_receive('billing', 'elsewhere')").await);
    let brief = InboxConfig::default().lease(Duration::from_millis(1));
    inbox.begin("billing", "lapsed", &brief).await.unwrap();
    lease_runs_out(&own).await;
    assert!(is_true(&own, "hapax_receive('billing', 'lapsed')").await, "taken over");
}

#[tokio::test]
async fn sql_receive_waits_for_the_first_transaction() {
    let (url, mut first) = application("sql_receive_wait").await;
    let observer = client(&url).await;
    for (n, level) in LEVELS.into_iter().enumerate() {
        for is_committed in [true, false] {
            let sql = format!("SELECT hapax_receive('c', 'm{n}{is_committed}')");
            let tx = start(&mut first, level).await;
            assert!(tx.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0));
            let mut second = client(&url).await;
            let other_sql = sql.clone();
            let waiting = tokio::spawn(async move {
                let other = start(&mut second, level).await;
                other.query_one(&other_sql, &[]).await.map(|row| row.get::<_, bool>(0))
            });
            someone_waits(&observer).await;
            match is_committed {
                true => tx.commit().await.unwrap(),
                false => tx.rollback().await.unwrap(),
            }
            let answer = waiting.await.unwrap();
            match (is_committed, level) {
                (true, IsolationLevel::ReadCommitted) => assert!(!answer.unwrap()),
                (true, _) => assert_eq!(super::code_of(&answer.unwrap_err()), "40001"),
                (false, _) => assert!(answer.unwrap(), "the first delivery was rolled back"),
            }
        }
    }
    let tx = start(&mut first, LEVELS[0]).await;
    assert!(is_true(&tx, "hapax_receive('c', 'bounded')").await);
    let sql = "SET lock_timeout = '50ms'; SELECT hapax_receive('c', 'bounded')";
    assert_eq!(error_code(&observer, sql).await, "55P03");
}

#[tokio::test]
async fn sql_enqueued_message_is_leased_after_the_commit() {
    let (url, mut own) = application("sql_enqueue").await;
    let store = open(&url);
    let take = || LeaseRequest::new(10, PATIENT);
    let tx = start(&mut own, LEVELS[0]).await;
    let sql = "SELECT hapax_enqueue('orders', 'order-1', '\\x00ff', '{\"a\": \"b\"}', \
               tenant => 'shop')::text";
    let id: String = tx.query_one(sql, &[]).await.unwrap().get(0);
    let later = "SELECT hapax_enqueue('orders', NULL, '', not_before => now() + interval '1 hour')";
    tx.batch_execute(later).await.unwrap();
    tx.batch_execute("SELECT hapax_enqueue('orders', NULL, 'x', queue => 'mail')").await.unwrap();
    assert!(store.lease(&QueueName::outbox(), &take()).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    let leased = store.lease(&QueueName::outbox(), &take()).await.unwrap();
    let [leased] = &leased[..] else { panic!("{leased:?}") };
    assert_eq!(leased.item.id.to_string(), id);
    assert_eq!((&*leased.item.topic, leased.item.key.as_deref()), ("orders", Some("order-1")));
    assert_eq!(leased.item.payload, &b"\x00\xff"[..]);
    assert_eq!(leased.item.headers["a"], "b");
    assert_eq!(leased.item.tenant, Tenant::new("shop").unwrap());
    let mail = QueueName::new("mail").unwrap();
    assert_eq!(store.lease(&mail, &take()).await.unwrap().len(), 1);
    assert_eq!(store.depth(&QueueName::outbox(), None).await.unwrap().waiting, 1);
}
