//! hapax's own bus as a sink.

use std::sync::Arc;

use hapax_core::bus::Bus;
use hapax_core::memory::MemoryStore;
use hapax_relay::sinks::BusSink;

use crate::support::{Working, brisk, dead, depth, drained, enqueue, item, until};

const STARTED: &str = r#"{"domain":"scan","job_id":"j1","stage":"vision","seq":10,"data":{"a":1}}"#;

#[tokio::test]
async fn rows_become_events_and_what_cannot_is_a_dead_letter() {
    let store = Arc::new(MemoryStore::default());
    let bus = Bus::new(store.clone());
    let done = r#"{"domain":"scan","job_id":"j1","stage":"end of it","seq":11}"#;
    let last = r#"{"domain":"scan","job_id":"j1","stage":"vision","seq":12,"final":true}"#;
    let conflict = STARTED.replace("\"a\":1", "\"a\":2");
    enqueue(
        &*store,
        &[
            item(STARTED).key("j1"),
            // The same event in another row is a duplicate, and counts as delivered.
            item(STARTED).key("j1"),
            item(&conflict).key("other"),
            item("gibberish").key("poison"),
            item(done).key("blank"),
        ],
    )
    .await;
    let relay = Working::start(store.clone(), Arc::new(BusSink::new(bus.clone())), brisk());
    until("what cannot is dead", async || depth(&*store).await.dead == 3).await;
    enqueue(&*store, &[item(last).key("j1")]).await;
    drained(&*store).await;
    relay.stop().await;
    let job = bus.state("scan", "j1").await.unwrap().unwrap();
    assert_eq!((job.last, job.closed), (2, true));
    let dead = dead(&*store).await;
    assert!(dead.iter().all(|dead| dead.attempts == 1), "trying again would not help");
    assert!(dead.iter().all(|dead| !dead.reason.contains("gibberish")), "{dead:?}");
}
