//! Gateways of several channels on one store.

use hapax_core::Queue;
use hapax_line::simulator::events;

use crate::gateway::setup::{Setup, USER};

/// Setups with a secret of its own each, on one store.
async fn on_one_store(secrets: [&'static str; 2]) -> [Setup; 2] {
    let [mut a, mut b] = [Setup::new().await, Setup::new().await];
    (a.secret, b.secret) = (secrets[0], secrets[1]);
    (b.store, b.clock) = (a.store.clone(), a.clock.clone());
    [a, b]
}

#[tokio::test]
async fn fault_10_gateway_handles_only_events_of_its_channel() {
    let [mut a, mut b] = on_one_store(["secret a", "secret b"]).await;
    let taps: Vec<_> = (0..5).map(|n| events::text(&format!("Uf00d{n}"), "a")).collect();
    a.idle().tap(&taps).await;
    let (_line, event) = b.start_with(events::text(USER, "b")).await;
    assert_eq!(event.event.text(), Some("b"));
    event.done();
    b.settled(0).await;
    assert_eq!(a.store.depth(&a.queue(), None).await.unwrap().waiting, 5);
    // A restarted gateway finds the events of its channel before any webhook arrives.
    let _line = a.start();
    for _ in 0..5 {
        let event = a.next().await;
        assert_eq!(event.event.text(), Some("a"));
        event.done();
    }
    a.settled(0).await;
}

#[tokio::test]
async fn fault_10_rotated_secret_drains_the_queue_of_the_old_one() {
    let [old, mut both] = on_one_store(["old", "new,old"]).await;
    old.idle().tap(&[events::text(USER, "before")]).await;
    let line = both.start();
    let event = both.next().await;
    assert_eq!(event.event.text(), Some("before"));
    event.done();
    // Another user, because the lock of the first may still be held.
    line.tap(&[events::text("Uf00d2", "meanwhile")]).await;
    let event = both.next().await;
    assert_eq!(event.event.text(), Some("meanwhile"));
    event.done();
    both.settled(0).await;
}
