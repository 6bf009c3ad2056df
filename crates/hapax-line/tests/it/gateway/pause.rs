//! A queue that an operator has paused, and the quota that operators see.

use hapax_core::worker;
use hapax_line::simulator::events;

use crate::gateway::setup::{Setup, USER};

#[tokio::test]
async fn gateway_stores_events_of_a_paused_queue_until_it_is_resumed() {
    let mut setup = Setup::with(|config| config.pausable(true)).await;
    let queue = setup.queue();
    worker::pause(&setup.store, &*setup.clock, &queue, "ann", Some("new bot")).await.unwrap();
    let line = setup.start();
    line.tap(&[events::text(USER, "🥚")]).await;
    // The worker was woken by the event, and has asked whether the queue is paused.
    let before = setup.store.calls();
    setup.until(async || setup.store.calls() > before + 1).await;
    setup.queued(1, 0).await;
    assert!(worker::resume(&setup.store, &queue).await.unwrap());
    setup.next().await.done();
    setup.settled(0).await;
}

#[tokio::test]
async fn gateway_reads_the_quota_of_its_channel() {
    let setup = Setup::new().await;
    setup.api.set_monthly_limit(200);
    let line = setup.start();
    let mut quota = line.gateway.quota();
    let read = quota.wait_for(Option::is_some).await.unwrap().unwrap();
    assert_eq!((read.limit, read.used), (Some(200), 0));
    setup.assert_accepted(0);
}
