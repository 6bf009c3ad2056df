//! Items that are done, and the calls that say so.

use std::time::Duration;

use hapax_core::queue::{
    Enqueued, ItemId, ItemOutcome, LeaseRequest, Queue, QueueDepth, QueueItem, QueueName, Resolved,
};
use hapax_core::{Store, Tenant};
use hapax_postgres::{HapaxTransaction, PostgresStore};
use tokio::task::JoinSet;
use tokio_postgres::IsolationLevel;

use crate::{LONG, SERVER, client, open};

fn item(payload: &str) -> QueueItem {
    QueueItem::new(&Tenant::default(), "t", payload.to_owned())
}

async fn enqueue(store: &PostgresStore, items: &[QueueItem]) -> Vec<Enqueued> {
    store.enqueue(&QueueName::outbox(), items).await.unwrap()
}

async fn lease(store: &PostgresStore, max_items: usize) -> (LeaseRequest, Vec<ItemId>) {
    let take = LeaseRequest::new(max_items, LONG);
    let leased = store.lease(&QueueName::outbox(), &take).await.unwrap();
    (take, leased.iter().map(|leased| leased.item.id).collect())
}

async fn ack(store: &PostgresStore, take: &LeaseRequest, ids: &[ItemId]) -> Vec<Resolved> {
    store.ack(&QueueName::outbox(), &take.token, ids, LONG).await.unwrap()
}

/// The snapshot of a transaction is older than the ack of an item that it enqueues again.
#[tokio::test]
async fn item_done_after_a_snapshot_is_not_enqueued_again() {
    let url = SERVER.database("done_after_snapshot");
    let (store, item) = (open(&url), item("once"));
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead] {
        enqueue(&store, std::slice::from_ref(&item)).await;
        let mut own = client(&url).await;
        let mut tx = own.build_transaction().isolation_level(level).start().await.unwrap();
        tx.batch_execute("SELECT FROM hapax_outbox").await.unwrap();
        let (take, ids) = lease(&store, 10).await;
        ack(&store, &take, &ids).await;
        let again = tx.hapax().enqueue(&item).await;
        match level {
            IsolationLevel::ReadCommitted => assert_eq!(again.unwrap(), Enqueued::Duplicate),
            _ => assert!(again.is_err(), "{again:?}"),
        }
        drop(tx);
        assert_eq!(enqueue(&store, std::slice::from_ref(&item)).await, [Enqueued::Duplicate]);
        own.batch_execute("UPDATE hapax_done SET until = now()").await.unwrap();
    }
    assert_eq!(enqueue(&store, &[item]).await, [Enqueued::Accepted]);
}

/// A role that may do nothing but insert adds no item that is done.
#[tokio::test]
async fn plain_insert_of_a_done_item_adds_nothing() {
    let url = SERVER.database("done_plain_insert");
    let (store, item) = (open(&url), item("once"));
    enqueue(&store, std::slice::from_ref(&item)).await;
    let rights = "CREATE ROLE done_shop LOGIN; GRANT INSERT ON hapax_outbox TO done_shop; \
                  GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO done_shop";
    SERVER.psql_in("done_plain_insert", rights);
    let mut shop = client(&url.replace("postgres@", "done_shop@")).await;
    let insert = "INSERT INTO hapax_outbox (id, topic, payload) VALUES ($1, 't', '')";
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead] {
        let tx = shop.build_transaction().isolation_level(level).start().await.unwrap();
        tx.batch_execute("SELECT 1").await.unwrap();
        let (take, ids) = lease(&store, 10).await;
        ack(&store, &take, &ids).await;
        let inserted = tx.execute(insert, &[&item.id.0]).await;
        // A snapshot that is older than the ack cannot know of it.
        let can_know = matches!(level, IsolationLevel::ReadCommitted);
        assert_eq!(inserted.is_ok(), can_know, "{inserted:?}");
        drop(tx);
        shop.execute(insert, &[&item.id.0]).await.unwrap();
        assert_eq!(lease(&store, 10).await.1, []);
        let own = client(&url).await;
        own.batch_execute("UPDATE hapax_done SET until = now()").await.unwrap();
        enqueue(&store, std::slice::from_ref(&item)).await;
    }
}

/// Nodes of schema version 5 call `hapax_resolve`, which remembers done items in the outbox itself.
#[tokio::test]
async fn item_done_by_an_older_node_is_remembered() {
    let url = SERVER.database("done_by_older_node");
    let (store, item) = (open(&url), item("once"));
    enqueue(&store, std::slice::from_ref(&item)).await;
    let (take, _) = lease(&store, 10).await;
    let own = client(&url).await;
    let resolve = "SELECT hapax_resolve('outbox', $1, ARRAY[$2::uuid], '{1}', '{60000}', '{NULL}')";
    own.execute(resolve, &[&take.token.as_str().as_bytes(), &item.id.0]).await.unwrap();
    assert_eq!(enqueue(&store, std::slice::from_ref(&item)).await, [Enqueued::Duplicate]);
    assert_eq!(ack(&store, &take, &[item.id]).await, [Resolved::Done]);
    own.batch_execute("UPDATE hapax_outbox SET due_at = now()").await.unwrap();
    assert_eq!(ack(&store, &take, &[item.id]).await, [Resolved::Lost]);
    assert_eq!(enqueue(&store, &[item]).await, [Enqueued::Accepted]);
}

/// Outcomes of several leases, and several calls with one token, go to the server in one statement.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_outcomes_end_each_lease_once() {
    let url = SERVER.database("concurrent_outcomes");
    let store = open(&url);
    enqueue(&store, &(0..40).map(|n| item(&n.to_string())).collect::<Vec<_>>()).await;
    let mut calls = JoinSet::new();
    for _ in 0..4 {
        let (take, ids) = lease(&store, 10).await;
        assert_eq!(ids.len(), 10);
        let bury = ItemOutcome::Bury { reason: "no".into(), blocks: false };
        let done = ItemOutcome::Ack { retention: LONG };
        // The third call repeats the first one's acks; of two outcomes in one call the first counts.
        let outcomes = |half: &[ItemId], outcome: &ItemOutcome| {
            half.iter().map(|id| (*id, outcome.clone())).collect::<Vec<_>>()
        };
        let twice = [outcomes(&ids[5..], &bury), outcomes(&ids[5..], &done)].concat();
        for (call, lost) in
            [(outcomes(&ids[..5], &done), 0), (twice, 5), (outcomes(&ids[..5], &done), 0)]
        {
            let (store, token) = (store.clone(), take.token.clone());
            calls.spawn(async move {
                let answers = store.resolve(&QueueName::outbox(), &token, &call).await.unwrap();
                let expected = [vec![Resolved::Done; 5], vec![Resolved::Lost; lost]].concat();
                assert_eq!(answers, expected);
            });
        }
    }
    calls.join_all().await;
    let depth = store.depth(&QueueName::outbox(), None).await.unwrap();
    let (dead, nothing) = (20, QueueDepth::default());
    assert_eq!(depth, QueueDepth { dead, ..nothing });
    assert_eq!(SERVER.psql_in("concurrent_outcomes", "SELECT count(*) FROM hapax_leases"), "0");
}

/// The sweep deletes what need not be remembered any more.
#[tokio::test]
async fn sweep_forgets_done_items() {
    let url = SERVER.database("sweep_done");
    let store = open(&url);
    enqueue(&store, &[item("a"), item("b")]).await;
    let (take, ids) = lease(&store, 10).await;
    store
        .ack(&QueueName::outbox(), &take.token, &ids[..1], Duration::from_millis(1))
        .await
        .unwrap();
    ack(&store, &take, &ids[1..]).await;
    let own = client(&url).await;
    let left = async || {
        store.sweep(100).await.unwrap();
        own.query_one("SELECT count(*) FROM hapax_done", &[]).await.unwrap().get::<_, i64>(0)
    };
    while left().await > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(left().await, 1);
}
