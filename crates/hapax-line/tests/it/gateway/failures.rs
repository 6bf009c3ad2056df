use std::time::Duration;

use hapax_conformance::{Fault, StorePart};
use hapax_core::{OnUnknown, Queue};
use hapax_line::EventHandlerError;
use hapax_line::simulator::events;

use crate::gateway::desk::{Desk, Order, USER};

#[tokio::test]
async fn failed_event_is_retried_then_a_requeuable_dead_letter() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    line.tap(&[events::follow(USER)]).await;
    for attempt in 1..=5 {
        let event = desk.next_later().await;
        assert_eq!(event.attempt, attempt);
        event.fails(EventHandlerError::retry("the bot is not well"));
    }
    desk.settled(1).await;
    let dead = desk.store.dead(desk.queue(), None, None, 10).await.unwrap();
    assert_eq!((dead[0].attempts, &*dead[0].reason), (5, "the bot is not well"));
    assert!(desk.store.requeue(desk.queue(), None, dead[0].id).await.unwrap());
    desk.next().await.done();
    desk.settled(0).await;
    drop(line);
}

#[tokio::test]
async fn what_will_never_work_is_a_dead_letter_at_once() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    line.tap(&[events::follow(USER)]).await;
    desk.next().await.fails(EventHandlerError::permanent("no such thing"));
    desk.settled(1).await;
    drop(line);
}

/// The gateway still waits for the answer to the burial, and no longer holds the event.
#[tokio::test]
async fn a_dead_letter_can_be_put_back_as_soon_as_it_is_one() {
    let mut desk = Desk::new().await;
    desk.idle().tap(&[events::follow(USER)]).await;
    let _line = desk.start_quietly().await;
    let first = desk.next().await;
    let (id, before) = (first.id, desk.store.calls());
    desk.store.only(Some(StorePart::Queue));
    desk.store.plan([Fault::NoAnswer]);
    first.fails(EventHandlerError::permanent("no such thing"));
    // The mark is one call of the store and the burial is the next, which gets no answer.
    desk.until(async || desk.store.calls() >= before + 2).await;
    desk.settled(1).await;
    assert!(desk.store.requeue(desk.queue(), None, id).await.unwrap());
    desk.next().await.done();
}

#[tokio::test]
async fn what_panics_or_takes_too_long_is_unknown_and_tried_again() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    line.tap(&[events::follow(USER)]).await;
    desk.next().await.order(Order::Panic);
    assert_eq!(desk.next_later().await.attempt, 2);
    drop(line);

    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().handler_timeout(Duration::from_millis(300));
    let line = desk.start();
    line.tap(&[events::follow(USER)]).await;
    let hangs = desk.next().await;
    assert_eq!(hangs.attempt, 1);
    assert_eq!(desk.next_later().await.attempt, 2);
    drop((line, hangs));
}

#[tokio::test]
async fn dead_gateways_event_is_taken_over_with_a_greater_fence() {
    let mut desk = Desk::new().await;
    let one = desk.start();
    one.tap(&[events::text(USER, "🥚")]).await;
    let first = desk.next().await;
    one.kill();
    let _another = desk.start();
    desk.outlive();
    let second = desk.next().await;
    assert_eq!((second.id, second.attempt), (first.id, 2));
    assert!(second.fence > first.fence);
    second.done();
    desk.settled(0).await;
}

#[tokio::test]
async fn dead_gateways_event_is_a_dead_letter_under_refuse() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().on_unknown(OnUnknown::Refuse);
    let one = desk.start();
    one.tap(&[events::follow(USER)]).await;
    let first = desk.next().await;
    one.kill();
    let _another = desk.start();
    desk.outlive();
    desk.settled(1).await;
    // An operator permits another attempt by requeueing the dead letter.
    assert!(desk.store.requeue(desk.queue(), None, first.id).await.unwrap());
    let second = desk.next().await;
    assert_eq!((second.id, second.attempt), (first.id, 2));
}

#[tokio::test]
async fn event_that_kills_every_gateway_becomes_a_dead_letter() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().max_attempts(2);
    let line = desk.start();
    line.tap(&[events::follow(USER)]).await;
    desk.next().await;
    line.kill();
    desk.outlive();
    let line = desk.start();
    let second = desk.next().await;
    line.kill();
    desk.outlive();
    let _line = desk.start();
    desk.settled(1).await;
    assert!(desk.store.requeue(desk.queue(), None, second.id).await.unwrap());
    desk.next().await.done();
    desk.settled(0).await;
}

#[tokio::test]
async fn event_handled_from_memory_is_not_rerun_under_refuse() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().on_unknown(OnUnknown::Refuse);
    // A short lease, so that it expires while `settled` waits.
    desk.config = desk.config.clone().lease(Duration::from_secs(30));
    let one = desk.start_quietly().await;
    // The event is stored, but the gateway does not get the store's answer.
    desk.store.only(Some(StorePart::Queue));
    desk.store.plan([Fault::LostAnswer]);
    one.tap(&[events::follow(USER)]).await;
    desk.next().await;
    one.kill();
    desk.config = desk.config.clone().poll_interval(Duration::from_millis(10));
    let _another = desk.start();
    desk.settled(1).await;
}
