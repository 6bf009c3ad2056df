//! The relay when it cannot keep a lease.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Script, Working, brisk, depth, drain, drained, enqueue, in_virtual_time, item, until,
};
use hapax_conformance::{Fault, FaultyStore};
use tokio::sync::Semaphore;

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_a_send_takes_long() {
    let store = Arc::new(in_virtual_time());
    enqueue(&*store, &[item("1").key("k")]).await;
    let permits = Arc::new(Semaphore::new(0));
    let sink = Arc::new(Script::takes_with(&permits));
    let lease = Duration::from_millis(600);
    let relays =
        [(); 2].map(|()| Working::start(store.clone(), sink.clone(), brisk().lease(lease)));
    until("it is in flight", async || sink.begun().len() == 1).await;
    // Wait for longer than a lease, so that it must be renewed.
    tokio::time::sleep(lease * 3).await;
    permits.add_permits(1);
    drained(&*store).await;
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(sink.begun().len(), 1, "the other relay did not get it");
}

#[tokio::test(start_paused = true)]
async fn relay_whose_lease_is_gone_sends_nothing_more_of_it() {
    let store = Arc::new(in_virtual_time());
    enqueue(&*store, &["1", "2"].map(|name| item(name).key("k"))).await;
    let permits = Arc::new(Semaphore::new(0));
    let slow = Arc::new(Script::takes_with(&permits));
    let settings = brisk().lease(Duration::from_millis(80));
    let faulty = Arc::new(FaultyStore::new(store.clone()));
    let first = Working::start(faulty.clone(), slow.clone(), settings.clone());
    until("the first has it", async || slow.begun().len() == 1).await;
    // The first relay cannot renew its lease any more.
    faulty.always(Some(Fault::LostQuestion));
    let sink = Arc::new(Script::takes_all());
    drain(&store, sink.clone(), settings, 0).await;
    assert_eq!(sink.payloads(), ["1", "2"]);
    permits.add_permits(9);
    until("the first delivers late", async || !slow.delivered().is_empty()).await;
    faulty.always(None);
    first.stop().await;
    assert_eq!(slow.payloads(), ["1"], "the lease of `2` was gone");
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_answer_was_lost_is_asked_for_again() {
    let store = FaultyStore::new(Arc::new(in_virtual_time()));
    enqueue(&store, &[item("1"), item("2")]).await;
    store.plan([Fault::LostAnswer, Fault::LostAnswer]);
    let sink = Arc::new(Script::takes_all());
    // With a new token, the relay would get the rows only after this lease of an hour.
    let settings = brisk().lease(Duration::from_secs(3600));
    let relay = Working::start(Arc::new(store.clone()), sink.clone(), settings);
    until("both are delivered", async || sink.delivered().len() == 2).await;
    drained(&store).await;
    relay.stop().await;
    assert!(sink.delivered().iter().all(|call| call.attempt == 1));
}

#[tokio::test(start_paused = true)]
async fn relay_outcome_that_was_not_written_is_written_again() {
    let store = Arc::new(in_virtual_time());
    enqueue(&*store, &[item("1")]).await;
    let faulty = FaultyStore::new(store.clone());
    let fails = faulty.clone();
    let sink = Arc::new(Script::new(move |_| {
        fails.always(Some(Fault::LostQuestion));
        async { Ok(()) }
    }));
    let relay = Working::start(Arc::new(faulty.clone()), sink.clone(), brisk());
    until("it is delivered", async || sink.delivered().len() == 1).await;
    let calls = faulty.calls();
    until("the outcome was tried in vain", async || faulty.calls() >= calls + 3).await;
    assert_eq!(depth(&*store).await.in_flight, 1);
    faulty.always(None);
    drained(&*store).await;
    relay.stop().await;
    assert_eq!(sink.begun().len(), 1, "it was not sent again");
}
