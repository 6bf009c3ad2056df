//! A queue that an operator has paused.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::QueueName;
use hapax_core::{ManualClock, worker};
use hapax_relay::Relay;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn relay_sends_what_is_in_flight_and_then_waits_until_resumed() {
    let store = Arc::new(in_virtual_time());
    let (permits, queue) = (Arc::new(Semaphore::new(0)), QueueName::outbox());
    let sink = Arc::new(Script::takes_with(&permits));
    enqueue(&*store, &[item("in flight")]).await;
    let relay = Working::run({
        let (queue, pauses, sink) = (store.clone(), store.clone(), sink.clone());
        |stop| Relay::with(queue, sink, brisk()).pausable(pauses).run(stop)
    });
    until("it is being sent", async || sink.begun().len() == 1).await;
    worker::pause(&*store, &ManualClock::default(), &queue, "ann", None).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    enqueue(&*store, &[item("later")]).await;
    permits.add_permits(2);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(sink.payloads(), ["in flight"]);
    assert_eq!(depth(&*store).await.waiting, 1);
    assert!(worker::resume(&*store, &queue).await.unwrap());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(sink.payloads(), ["in flight", "later"]);
    relay.stop().await;
}
