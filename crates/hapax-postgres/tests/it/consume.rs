//! A group of the bus whose effects and progress are in one transaction: exactly once, although its
//! members are killed at any moment.

use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_conformance::scale;
use hapax_core::Put;
use hapax_core::bus::consume::{
    Consumer, ConsumerGroupConfig, EventDelivery, EventOutcome, HandlerError,
};
use hapax_core::bus::{Bus, NewEvent};
use hapax_postgres::{HapaxTransaction, PostgresConfig, PostgresStore};
use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::kills::{URL, Worker};
use crate::{SERVER, client};

const JOBS: usize = 24;

fn bus(url: &str) -> Bus {
    let config = PostgresConfig::new(url).partitions(16).timeout(Duration::from_secs(60));
    Bus::new(Arc::new(PostgresStore::open(config).unwrap()))
}

async fn member(url: &str) -> Consumer {
    let shop = Arc::new(Mutex::new(client(url).await));
    let handler = move |delivery: EventDelivery| {
        let shop = shop.clone();
        async move { effect(&mut *shop.lock().await, &delivery).await }
    };
    let consume = ConsumerGroupConfig::default()
        .lease(Duration::from_secs(1))
        .poll_interval(Duration::from_millis(20))
        .backoff(Duration::from_millis(10), Duration::from_millis(100));
    bus(url).consume_with("billing", handler, consume).unwrap()
}

/// The effect, and how far we are, in one transaction.
async fn effect(shop: &mut Client, delivery: &EventDelivery) -> Result<EventOutcome, HandlerError> {
    let mut tx = shop.transaction().await?;
    let (job, seq) = (delivery.job.name(), i64::try_from(delivery.entry.seq)?);
    tx.execute("INSERT INTO effects (job, seq) VALUES ($1, $2)", &[&job, &seq]).await?;
    let at = &delivery.progress;
    match tx.hapax().put(&at.key, at.value.clone(), &at.expect, None).await? {
        Put::Stored { version, .. } => {
            tx.commit().await?;
            Ok(EventOutcome::Saved(version))
        }
        // Rolled back with the effect.
        Put::Conflict => Ok(EventOutcome::Superseded),
    }
}

/// The child's work; does nothing unless it is started as the child.
#[tokio::test(flavor = "multi_thread")]
async fn victim() {
    let Ok(url) = env::var(URL) else { return };
    let _member = member(&url).await;
    std::future::pending::<()>().await;
}

async fn count(shop: &Client, of: &str) -> i64 {
    shop.query_one(&format!("SELECT count(*) FROM {of}"), &[]).await.unwrap().get(0)
}

async fn until(shop: &Client, effects: i64) {
    let limit = Instant::now() + Duration::from_secs(120);
    while count(shop, "effects").await < effects {
        assert!(Instant::now() < limit, "some never happened");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_effects_happen_once_despite_kills() {
    let url = SERVER.database("consume_kills");
    let bus = bus(&url);
    let shop = client(&url).await;
    let table = "CREATE TABLE effects (n bigserial, job text NOT NULL, seq bigint NOT NULL)";
    shop.batch_execute(table).await.unwrap();
    let rounds = u64::from(scale(3));
    for round in 0..rounds {
        let before = count(&shop, "effects").await;
        let victims = ["a", "b"].map(|name| Worker::start("consume::victim", &url, name));
        for seq in round * 4..round * 4 + 4 {
            let event = |job| NewEvent::new("orders", format!("job-{job}"), "paid", seq);
            bus.publish_all(&(0..JOBS).map(event).collect::<Vec<_>>()).await.unwrap();
        }
        // Killed in the middle of the work, after a few effects or many.
        until(&shop, before + 5 + i64::try_from(round * 17 % 60).unwrap()).await;
        victims.into_iter().for_each(|victim| drop(victim.kill()));
    }
    let last = member(&url).await;
    let wanted = JOBS as i64 * 4 * rounds as i64;
    until(&shop, wanted).await;
    last.stop().await;
    assert_eq!(count(&shop, "effects").await, wanted);
    assert_eq!(count(&shop, "(SELECT DISTINCT job, seq FROM effects) e").await, wanted);
    let overtaken = "effects a JOIN effects b ON a.job = b.job AND a.n < b.n AND a.seq > b.seq";
    assert_eq!(count(&shop, overtaken).await, 0);
}
