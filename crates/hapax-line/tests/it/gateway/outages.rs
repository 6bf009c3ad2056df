use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::Fault;
use hapax_core::command::{CommandState, Commands};
use hapax_core::lock::OnStoreError;
use hapax_core::{Operation, Tenant};
use hapax_line::simulator::events;
use hapax_line::{EventHandlerError, LineEvent, WebhookStatus};

use crate::gateway::desk::{Desk, Running, USER};

/// Whether the store has recorded that an event was handled.
async fn is_done(desk: &Desk, id: &str) -> bool {
    let commands = Commands::new(Arc::new(desk.store.clone()));
    let view = commands.look(Operation("line"), id).await.unwrap();
    view.is_some_and(|view| matches!(view.state, CommandState::Completed { .. }))
}

/// However the store fails, the event is handled from memory, and not again when the store is back.
async fn handled_without_the_store(fault: Fault) {
    let mut desk = Desk::new().await;
    if fault == Fault::NoAnswer {
        desk.config = desk.config.clone().store_timeout(Duration::from_secs(2));
    }
    let line = desk.start();
    desk.store.always(Some(fault));
    let event = events::text(USER, "🥚");
    assert_eq!(line.tap(std::slice::from_ref(&event)).await, WebhookStatus::Accepted, "{fault:?}");
    let first = desk.next().await;
    assert_eq!(first.fence, None);
    // Another event of the same user is handled too: there is no lock without the store.
    line.tap(&[events::text(USER, "🥚 two")]).await;
    desk.next().await.done();
    // At least this process recognises a redelivery.
    line.tap(&[events::redelivered(&event)]).await;
    first.done();
    desk.store.always(None);
    // The queue may contain the event, if only the answer was lost.
    desk.settled(0).await;
    let id = LineEvent::parse(&"Uf00dbot".into(), &event.to_string()).unwrap();
    let id = id.id(&Tenant::default()).to_string();
    desk.until(async || is_done(&desk, &id).await).await;
    line.tap(&[events::redelivered(&event)]).await;
    desk.settled(0).await;
    line.tap(&[events::text("Uf00d2", "🥚 next")]).await;
    let next = desk.next().await;
    assert_eq!(next.event.text(), Some("🥚 next"), "{fault:?}");
    assert!(next.fence.is_some());
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_stops_no_bot() {
    handled_without_the_store(Fault::LostQuestion).await;
}

#[tokio::test]
async fn a_store_whose_answers_are_lost_stops_no_bot() {
    handled_without_the_store(Fault::LostAnswer).await;
}

#[tokio::test]
async fn a_store_that_hangs_stops_no_bot() {
    handled_without_the_store(Fault::NoAnswer).await;
}

#[tokio::test]
async fn outage_event_stored_before_it_is_still_handled() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    let first = events::follow(USER);
    // The answer to the enqueue is the last answer that arrives.
    desk.store.suppress_hints();
    line.tap(std::slice::from_ref(&first)).await;
    desk.store.always(Some(Fault::LostQuestion));
    let handled = desk.next().await;
    handled.done();
    desk.store.always(None);
    desk.outlive();
    desk.settled(0).await;
}

#[tokio::test]
async fn what_fails_without_the_store_is_tried_again_from_memory() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    desk.store.always(Some(Fault::LostQuestion));
    line.tap(&[events::follow(USER)]).await;
    desk.next().await.fails(EventHandlerError::retry("not yet"));
    let again = desk.next().await;
    assert_eq!((again.attempt, again.fence), (2, None));
}

#[tokio::test]
async fn outage_with_policy_closed_asks_line_to_redeliver() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().on_store_error(OnStoreError::Closed);
    let line = desk.start();
    desk.store.always(Some(Fault::LostQuestion));
    let event = events::follow(USER);
    assert_eq!(line.tap(std::slice::from_ref(&event)).await, WebhookStatus::Unavailable);
    desk.store.always(None);
    assert_eq!(line.tap(&[event]).await, WebhookStatus::Accepted);
    assert!(desk.next().await.fence.is_some());
}

#[tokio::test]
async fn outage_events_beyond_the_slots_are_refused() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().max_in_flight(2);
    let line = desk.start();
    desk.store.always(Some(Fault::LostQuestion));
    // The worker releases its slots when it learns that the store is unavailable.
    desk.until(async || {
        line.tap(&[events::follow("Uf00d1"), events::follow("Uf00d2")]).await
            == WebhookStatus::Accepted
    })
    .await;
    let held = (desk.next().await, desk.next().await);
    assert_eq!(line.tap(&[events::follow("Uf00d3")]).await, WebhookStatus::Unavailable);
    drop(held);
}

/// Checks that earlier events cause nothing more: their effects would come before this new event.
async fn nothing_comes_before_a_new_event(desk: &mut Desk, line: &Running) {
    line.tap(&[events::text("Uf00d2", "🥚 next")]).await;
    let next = desk.next().await;
    assert_eq!(next.event.text(), Some("🥚 next"));
    next.done();
}

#[tokio::test]
async fn event_leased_before_its_enqueue_was_answered_runs_once() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().store_timeout(Duration::from_secs(3));
    let line = desk.start_quietly().await;
    desk.store.plan([Fault::NoAnswer]);
    let event = [events::follow(USER)];
    let ((), answer) = tokio::join!(async { desk.next().await.done() }, line.tap(&event));
    assert_eq!(answer, WebhookStatus::Accepted);
    nothing_comes_before_a_new_event(&mut desk, &line).await;
}

#[tokio::test]
async fn event_handled_from_memory_is_not_handled_elsewhere() {
    let mut desk = Desk::new().await;
    // A gateway that finds the event claimed by another one tries again after the lease.
    desk.config = desk.config.clone().lease(Duration::from_secs(30));
    let one = desk.idle();
    desk.store.plan([Fault::LostAnswer]);
    one.tap(&[events::follow(USER)]).await;
    let first = desk.next().await;
    let another = desk.start();
    nothing_comes_before_a_new_event(&mut desk, &another).await;
    let id = first.id.to_string();
    first.done();
    // Wait before time passes: otherwise `another` would be right to take the event over.
    desk.until(async || is_done(&desk, &id).await).await;
    desk.settled(0).await;
    nothing_comes_before_a_new_event(&mut desk, &another).await;
}

#[tokio::test]
async fn event_failed_from_memory_is_a_dead_letter_after_outage() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().max_attempts(1);
    let line = desk.start();
    desk.store.always(Some(Fault::LostQuestion));
    line.tap(&[events::follow(USER)]).await;
    let first = desk.next().await;
    desk.store.always(None);
    first.fails(EventHandlerError::retry("not yet"));
    let second = desk.next_later().await;
    assert!(second.fence.is_some());
    second.fails(EventHandlerError::retry("not yet"));
    desk.settled(1).await;
}

#[tokio::test]
async fn a_worker_that_waits_for_the_store_takes_no_event_its_place() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().max_in_flight(1);
    desk.store.plan([Fault::NoAnswer, Fault::LostQuestion]);
    let line = desk.start_quietly().await;
    assert_eq!(line.tap(&[events::follow(USER)]).await, WebhookStatus::Accepted);
    desk.next().await.done();
}

#[tokio::test]
async fn a_gateway_that_has_stopped_takes_nothing_in_that_it_cannot_store() {
    let desk = Desk::new().await;
    let mut line = desk.start();
    line.stop().await;
    assert_eq!(line.tap(&[events::follow(USER)]).await, WebhookStatus::Accepted);
    desk.store.always(Some(Fault::LostQuestion));
    assert_eq!(line.tap(&[events::follow(USER)]).await, WebhookStatus::Unavailable);
}
