//! The relay on every store: each provides the queue that the relay needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::Queue;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::QueueName;
use hapax_postgres::PostgresStore;
use hapax_redis::{RedisConfig, RedisStore};
use hapax_sqlite::SqliteStore;
use hapax_testkit::{Postgres, Redis};

use crate::support::{
    Script, WAIT_TIMEOUT, Working, brisk, dead, depth, drained, enqueue, item, numbered, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn on_memory() {
    shared_work(Arc::new(MemoryStore::default()), |store| store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let config = hapax_sqlite::SqliteConfig::new(folder.path().join("a.db")).timeout(WAIT_TIMEOUT);
    shared_work(Arc::new(SqliteStore::open(config).unwrap()), |store| store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    let server = Postgres::start();
    let open = || {
        let config = hapax_postgres::PostgresConfig::new(server.url()).timeout(WAIT_TIMEOUT);
        Arc::new(PostgresStore::open(config).unwrap())
    };
    shared_work(open(), |store| {
        drop(store);
        server.wait_until_alone();
        open()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_redis() {
    let server = Redis::start();
    let config = RedisConfig::new(&server.url()).unwrap().timeout(WAIT_TIMEOUT);
    shared_work(Arc::new(RedisStore::open(config).unwrap()), |store| store).await;
}

/// Sends rows of several keys and a poison row, with two relays and a third that dies while it
/// holds rows. The last call of the dead relay may still be on its way to the store; `settled`
/// returns the store when that call is done. A store that gets all calls in order over one
/// connection need not wait.
async fn shared_work<Q: Queue + 'static>(store: Arc<Q>, settled: impl FnOnce(Arc<Q>) -> Arc<Q>) {
    let rows = numbered(240, 13);
    let sink = Arc::new(Script::refuses("poison"));
    // Long leases, so that none expires on a busy machine, except those of the relay that dies.
    let settings = brisk().max_batch(40);
    enqueue(&*store, &rows[..40]).await;
    let hangs = Arc::new(Script::new(|_| std::future::pending()));
    let short = settings.clone().lease(Duration::from_millis(400));
    let dying = Working::start(store.clone(), hangs.clone(), short);
    until("the third has some", async || !hangs.begun().is_empty()).await;
    let held: BTreeSet<_> = hangs.begun().into_iter().map(|call| call.id).collect();
    dying.kill();
    let store = settled(store);

    let relays = [(); 2].map(|()| Working::start(store.clone(), sink.clone(), settings.clone()));
    until("they took over", async || sink.delivered().len() == 40).await;
    enqueue(&*store, &[item("poison").key("bad"), item("behind it").key("bad")]).await;
    for rows in rows[40..].chunks(25) {
        enqueue(&*store, rows).await;
    }
    until("poison is dead", async || depth(&*store).await.dead == 1).await;
    let dead = dead(&*store).await;
    assert_eq!((dead[0].attempts, &*dead[0].reason), (3, "poison"));
    assert!(store.discard(&QueueName::outbox(), None, dead[0].id).await.unwrap());
    drained(&*store).await;
    for relay in relays {
        relay.stop().await;
    }

    assert_eq!(sink.calls_for("poison"), 3);
    assert_eq!(sink.begun().len(), 240 + 1 + 3, "each row once");
    sink.assert_order_of_keys();
    let mut taken_over = sink.delivered().into_iter().filter(|call| held.contains(&call.id));
    assert!(taken_over.all(|call| call.attempt > 1), "a lease that lapsed counts");
}
