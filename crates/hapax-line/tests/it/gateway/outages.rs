use std::time::Duration;

use hapax_conformance::Fault;
use hapax_core::command::{CommandState, CommandView};
use hapax_core::lock::OnStoreError;
use hapax_core::queue::ItemId;
use hapax_line::simulator::events;
use hapax_line::{EventHandlerError, WebhookStatus};

use crate::gateway::setup::{Running, Setup, USER, id_of};

/// Waits until the store has recorded that an event was handled.
async fn recorded(setup: &Setup, id: ItemId) {
    let is_completed = |view: CommandView| matches!(view.state, CommandState::Completed { .. });
    setup.until(async || setup.command(id).await.is_some_and(is_completed)).await;
}

/// However the store fails, the event is handled from memory, and not again when the store is back.
async fn handled_without_the_store(fault: Fault) {
    let mut setup = Setup::new().await;
    if fault == Fault::NoAnswer {
        setup.configure(|config| config.store_timeout(Duration::from_secs(2)));
    }
    let line = setup.start();
    setup.store.always(Some(fault));
    let event = events::text(USER, "🥚");
    assert_eq!(line.tap(std::slice::from_ref(&event)).await, WebhookStatus::Accepted, "{fault:?}");
    let first = setup.next().await;
    assert_eq!(first.fence, None);
    // Another event of the same user is handled too: there is no lock without the store.
    line.tap(&[events::text(USER, "🥚 two")]).await;
    setup.next().await.done();
    // At least this process recognises a redelivery.
    line.tap(&[events::redelivered(&event)]).await;
    first.done();
    setup.store.always(None);
    // The queue may contain the event, if only the answer was lost.
    setup.settled(0).await;
    recorded(&setup, id_of(&event)).await;
    line.tap(&[events::redelivered(&event)]).await;
    setup.settled(0).await;
    line.tap(&[events::text("Uf00d2", "🥚 next")]).await;
    let next = setup.next().await;
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
    let mut setup = Setup::new().await;
    let line = setup.start();
    let first = events::follow(USER);
    // The answer to the enqueue is the last answer that arrives.
    setup.store.suppress_hints();
    line.tap(std::slice::from_ref(&first)).await;
    setup.store.always(Some(Fault::LostQuestion));
    let handled = setup.next().await;
    handled.done();
    setup.store.always(None);
    setup.outlive();
    setup.settled(0).await;
}

#[tokio::test]
async fn outage_failed_event_is_retried_from_memory() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    setup.store.always(Some(Fault::LostQuestion));
    line.tap(&[events::follow(USER)]).await;
    setup.next().await.fails(EventHandlerError::retry("not yet"));
    let again = setup.next().await;
    assert_eq!((again.attempt, again.fence), (2, None));
}

#[tokio::test]
async fn outage_with_policy_closed_asks_line_to_redeliver() {
    let mut setup = Setup::with(|config| config.on_store_error(OnStoreError::Closed)).await;
    let line = setup.start();
    setup.store.always(Some(Fault::LostQuestion));
    let event = events::follow(USER);
    assert_eq!(line.tap(std::slice::from_ref(&event)).await, WebhookStatus::Unavailable);
    setup.store.always(None);
    assert_eq!(line.tap(&[event]).await, WebhookStatus::Accepted);
    assert!(setup.next().await.fence.is_some());
}

#[tokio::test]
async fn outage_events_beyond_the_slots_are_refused() {
    let mut setup = Setup::with(|config| config.max_in_flight(2)).await;
    let line = setup.start();
    setup.store.always(Some(Fault::LostQuestion));
    // The worker releases its slots when it learns that the store is unavailable.
    setup
        .until(async || {
            line.tap(&[events::follow("Uf00d1"), events::follow("Uf00d2")]).await
                == WebhookStatus::Accepted
        })
        .await;
    let held = (setup.next().await, setup.next().await);
    assert_eq!(line.tap(&[events::follow("Uf00d3")]).await, WebhookStatus::Unavailable);
    drop(held);
}

/// Checks that earlier events cause nothing more: their effects would come before this new event.
async fn nothing_comes_before_a_new_event(setup: &mut Setup, line: &Running) {
    line.tap(&[events::text("Uf00d2", "🥚 next")]).await;
    let next = setup.next().await;
    assert_eq!(next.event.text(), Some("🥚 next"));
    next.done();
}

#[tokio::test]
async fn event_leased_before_its_enqueue_was_answered_runs_once() {
    let mut setup = Setup::with(|config| config.store_timeout(Duration::from_secs(3))).await;
    let line = setup.start_quietly().await;
    setup.store.plan([Fault::NoAnswer]);
    let event = [events::follow(USER)];
    let ((), answer) = tokio::join!(async { setup.next().await.done() }, line.tap(&event));
    assert_eq!(answer, WebhookStatus::Accepted);
    nothing_comes_before_a_new_event(&mut setup, &line).await;
}

#[tokio::test]
async fn event_handled_from_memory_is_not_handled_elsewhere() {
    let mut setup = Setup::new().await;
    // A gateway that finds the event claimed by another one tries again after the lease.
    setup.configure(|config| config.lease(Duration::from_secs(30)));
    let one = setup.idle();
    setup.store.plan([Fault::LostAnswer]);
    one.tap(&[events::follow(USER)]).await;
    let first = setup.next().await;
    let another = setup.start();
    nothing_comes_before_a_new_event(&mut setup, &another).await;
    let id = first.id;
    first.done();
    // Wait before time passes: otherwise `another` would be right to take the event over.
    recorded(&setup, id).await;
    setup.settled(0).await;
    nothing_comes_before_a_new_event(&mut setup, &another).await;
}

#[tokio::test]
async fn event_failed_from_memory_is_a_dead_letter_after_outage() {
    let mut setup = Setup::with(|config| config.max_attempts(1)).await;
    let line = setup.start();
    setup.store.always(Some(Fault::LostQuestion));
    line.tap(&[events::follow(USER)]).await;
    let first = setup.next().await;
    setup.store.always(None);
    first.fails(EventHandlerError::retry("not yet"));
    let second = setup.next_later().await;
    assert!(second.fence.is_some());
    second.fails(EventHandlerError::retry("not yet"));
    setup.settled(1).await;
}

#[tokio::test]
async fn outage_slots_stay_free_while_the_worker_waits() {
    let mut setup = Setup::with(|config| config.max_in_flight(1)).await;
    setup.store.plan([Fault::NoAnswer, Fault::LostQuestion]);
    let line = setup.start_quietly().await;
    assert_eq!(line.tap(&[events::follow(USER)]).await, WebhookStatus::Accepted);
    setup.next().await.done();
}

#[tokio::test]
async fn outage_after_shutdown_refuses_what_cannot_be_stored() {
    let setup = Setup::new().await;
    let mut line = setup.start();
    line.stop().await;
    assert_eq!(line.tap(&[events::follow(USER)]).await, WebhookStatus::Accepted);
    setup.store.always(Some(Fault::LostQuestion));
    assert_eq!(line.tap(&[events::follow(USER)]).await, WebhookStatus::Unavailable);
}
