use std::time::Duration;

use hapax_conformance::{Fault, StorePart};
use hapax_core::queue::{DeadQuery, LeaseRequest};
use hapax_core::worker::TargetHealth;
use hapax_core::{OnUnknown, Queue};
use hapax_line::simulator::events;
use hapax_line::{EventHandlerError, GatewayConfig};

use crate::gateway::setup::{Order, Setup, USER, WAIT_TIMEOUT};

#[tokio::test]
async fn failed_event_is_retried_then_a_requeuable_dead_letter() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    line.tap(&[events::follow(USER)]).await;
    for attempt in 1..=5 {
        let event = setup.next_later().await;
        assert_eq!(event.attempt, attempt);
        event.fails(EventHandlerError::retry("the bot is not well"));
    }
    setup.settled(1).await;
    let dead = setup.store.dead(&setup.queue(), None, &DeadQuery::new(10)).await.unwrap();
    assert_eq!((dead[0].attempts, &*dead[0].reason), (5, "the bot is not well"));
    assert!(setup.store.requeue(&setup.queue(), None, dead[0].id).await.unwrap());
    setup.next().await.done();
    setup.settled(0).await;
    drop(line);
}

#[tokio::test]
async fn permanent_failure_is_a_dead_letter_at_once() {
    let mut setup = Setup::new().await;
    let (_line, event) = setup.start_with(events::follow(USER)).await;
    event.fails(EventHandlerError::permanent("no such thing"));
    setup.settled(1).await;
}

/// The gateway still waits for the answer to the burial, and no longer holds the event.
#[tokio::test]
async fn a_dead_letter_can_be_put_back_as_soon_as_it_is_one() {
    let mut setup = Setup::new().await;
    setup.idle().tap(&[events::follow(USER)]).await;
    let _line = setup.start_quietly().await;
    let first = setup.next().await;
    let (id, before) = (first.id, setup.store.calls());
    setup.store.only(Some(StorePart::Queue));
    setup.store.plan([Fault::NoAnswer]);
    first.fails(EventHandlerError::permanent("no such thing"));
    // The mark is one call of the store and the burial is the next, which gets no answer.
    setup.until(async || setup.store.calls() >= before + 2).await;
    setup.settled(1).await;
    assert!(setup.store.requeue(&setup.queue(), None, id).await.unwrap());
    setup.next().await.done();
}

#[tokio::test]
async fn what_panics_or_takes_too_long_is_unknown_and_tried_again() {
    let mut setup = Setup::new().await;
    let (_line, panics) = setup.start_with(events::follow(USER)).await;
    panics.order(Order::Panic);
    assert_eq!(setup.next_later().await.attempt, 2);

    let mut setup = Setup::with(|config| config.handler_timeout(Duration::from_millis(300))).await;
    let (line, hangs) = setup.start_with(events::follow(USER)).await;
    assert_eq!(hangs.attempt, 1);
    assert_eq!(setup.next_later().await.attempt, 2);
    drop((line, hangs));
}

#[tokio::test]
async fn dead_gateways_event_is_taken_over_with_a_greater_fence() {
    let mut setup = Setup::new().await;
    let (one, first) = setup.start_with(events::text(USER, "🥚")).await;
    let (_another, second) = setup.take_over(one).await;
    assert_eq!((second.id, second.attempt), (first.id, 2));
    assert!(second.fence > first.fence);
    second.done();
    setup.settled(0).await;
}

#[tokio::test]
async fn dead_gateways_event_is_a_dead_letter_under_refuse() {
    let mut setup = Setup::with(|config| config.on_unknown(OnUnknown::Refuse)).await;
    let (one, first) = setup.start_with(events::follow(USER)).await;
    one.kill();
    let _another = setup.start();
    setup.outlive();
    setup.settled(1).await;
    // An operator permits another attempt by requeueing the dead letter.
    assert!(setup.store.requeue(&setup.queue(), None, first.id).await.unwrap());
    let second = setup.next().await;
    assert_eq!((second.id, second.attempt), (first.id, 2));
}

#[tokio::test]
async fn event_that_kills_every_gateway_becomes_a_dead_letter() {
    let mut setup = Setup::with(|config| config.max_attempts(2)).await;
    let (line, _first) = setup.start_with(events::follow(USER)).await;
    let (line, second) = setup.take_over(line).await;
    line.kill();
    setup.outlive();
    let _line = setup.start();
    setup.settled(1).await;
    assert!(setup.store.requeue(&setup.queue(), None, second.id).await.unwrap());
    setup.next().await.done();
    setup.settled(0).await;
}

#[tokio::test]
async fn event_handled_from_memory_is_not_rerun_under_refuse() {
    // A short lease, so that it expires while `settled` waits.
    let lease = Duration::from_secs(30);
    let change = |config: GatewayConfig| config.on_unknown(OnUnknown::Refuse).lease(lease);
    let mut setup = Setup::with(change).await;
    let one = setup.start_quietly().await;
    // The event is stored, but the gateway does not get the store's answer.
    setup.store.only(Some(StorePart::Queue));
    setup.store.plan([Fault::LostAnswer]);
    one.tap(&[events::follow(USER)]).await;
    setup.next().await;
    one.kill();
    setup.configure(|config| config.poll_interval(Duration::from_millis(10)));
    let _another = setup.start();
    setup.settled(1).await;
}

#[tokio::test]
async fn fault_08_one_event_tries_while_the_bot_takes_nothing() {
    let mut setup = Setup::with(|config| config.max_attempts(1)).await;
    let taps: Vec<_> = (0..5).map(|n| events::follow(&format!("Uf00d{n}"))).collect();
    setup.idle().tap(&taps).await;
    let line = setup.start();
    let mut health = line.gateway.health();
    for failure in [EventHandlerError::away("gone"), EventHandlerError::rejected("full")] {
        let mut in_hand = Vec::new();
        let is_up = *health.borrow() == TargetHealth::Up;
        if is_up {
            for _ in 0..5 {
                in_hand.push(setup.next().await);
            }
        } else {
            in_hand.push(setup.next_later().await);
        }
        in_hand.into_iter().for_each(|event| event.fails(failure.clone()));
        let reason = failure.to_string();
        let is_down = |health: &TargetHealth| *health == TargetHealth::Down(reason.clone().into());
        tokio::time::timeout(WAIT_TIMEOUT, health.wait_for(is_down)).await.unwrap().unwrap();
        if is_up {
            // All five failures are recorded: a late one would hide the next reason. None is due before the
            // clock advances; later on the next event tries at once.
            setup.queued(5, 0).await;
        }
    }
    // The first event that is handled ends it.
    for _ in 0..5 {
        setup.next_later().await.done();
    }
    setup.settled(0).await;
    assert_eq!(*health.borrow(), TargetHealth::Up);
}

#[tokio::test]
async fn attempt_grows_although_a_bot_that_is_away_uses_up_none() {
    let mut setup = Setup::new().await;
    setup.idle().tap(&[events::follow(USER)]).await;
    // Gateways that died with the event, before they gave it to the bot.
    let lease = Duration::from_secs(1);
    for attempt in 1..=2 {
        let leased = setup.store.lease(&setup.queue(), &LeaseRequest::new(1, lease)).await.unwrap();
        assert_eq!((leased.len(), leased[0].attempt), (1, attempt));
        setup.clock.advance(2 * lease);
    }
    let _line = setup.start();
    for attempt in 1..=4 {
        let event = setup.next_later().await;
        assert_eq!(event.attempt, attempt);
        event.fails(EventHandlerError::away("gone"));
    }
    setup.next_later().await.done();
    setup.settled(0).await;
}

#[tokio::test]
async fn fault_08_event_of_an_outage_outlasts_the_bot_that_is_away_too() {
    let mut setup = Setup::with(|config| config.max_attempts(1)).await;
    let line = setup.start();
    setup.store.always(Some(Fault::LostQuestion));
    line.tap(&[events::follow(USER)]).await;
    for _ in 0..3 {
        let event = setup.next().await;
        assert_eq!(event.fence, None);
        event.fails(EventHandlerError::away("gone"));
    }
    // With the store back, the queue gets the event.
    let event = setup.next().await;
    setup.store.always(None);
    event.fails(EventHandlerError::away("gone"));
    let event = setup.next_later().await;
    assert!(event.fence.is_some());
    event.done();
    setup.settled(0).await;
}
