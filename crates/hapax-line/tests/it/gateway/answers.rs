use std::time::Duration;

use hapax_conformance::Fault as StoreFault;
use hapax_line::simulator::{ApiEndpoint, ApiFault, events};
use hapax_line::{EventHandlerError, SendError, SendStatus};

use crate::gateway::desk::{Desk, LEASE, REPLY_WINDOW, USER};

#[tokio::test]
async fn a_reply_token_is_used_once_also_when_the_event_is_tried_again() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    line.tap(&[events::text(USER, "🥚")]).await;
    let first = desk.next().await;
    assert_eq!(first.reply("one").await, Ok(SendStatus::Accepted));
    assert_eq!(first.reply("two").await, Err(SendError::AlreadyTried));
    first.fails(EventHandlerError::retry("after the reply"));
    let again = desk.next_later().await;
    assert_eq!(again.say("three").await, Err(SendError::AlreadyTried));
    assert_eq!((desk.api.accepted_calls().len(), desk.api.violations().len()), (1, 0));
}

#[tokio::test]
async fn a_reply_that_nobody_knows_about_is_never_repeated() {
    let mut desk = Desk::new().await;
    let one = desk.start();
    one.tap(&[events::text(USER, "🥚")]).await;
    let first = desk.next().await;
    desk.api.inject(ApiEndpoint::Reply, ApiFault::CutAfter);
    assert_eq!(first.say("one").await, Err(SendError::OutcomeUnknown));
    one.kill();
    let _another = desk.start();
    desk.outlive();
    let second = desk.next().await;
    assert_eq!(second.say("two").await, Err(SendError::AlreadyTried));
    assert_eq!((desk.api.accepted_calls().len(), desk.api.violations().len()), (1, 0));
}

#[tokio::test]
async fn a_push_that_is_repeated_has_the_same_key_and_is_sent_once() {
    let mut desk = Desk::new().await;
    let one = desk.start();
    one.tap(&[events::follow(USER)]).await;
    let first = desk.next().await;
    assert_eq!(first.push("one").await, Ok(SendStatus::Accepted));
    assert_eq!(first.push("two").await, Ok(SendStatus::Accepted));
    one.kill();
    let _another = desk.start();
    desk.outlive();
    let second = desk.next().await;
    assert_eq!(second.push("one").await, Ok(SendStatus::AlreadyAccepted));
    assert_eq!(second.push("two").await, Ok(SendStatus::AlreadyAccepted));
    assert_eq!(second.push("three").await, Ok(SendStatus::Accepted));
    assert_eq!((desk.api.accepted_calls().len(), desk.api.violations().len()), (3, 0));
}

#[tokio::test]
async fn where_the_token_is_too_old_it_is_pushed() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().reply_window(Duration::ZERO);
    let line = desk.start();
    line.tap(&[events::text(USER, "🥚")]).await;
    let event = desk.next().await;
    assert_eq!(event.reply("late").await, Err(SendError::NoToken));
    assert_eq!(event.say("late").await, Ok(SendStatus::Accepted));
    let said = desk.said().await;
    assert_eq!((said.endpoint, said.to.as_deref()), (ApiEndpoint::Push, Some(USER)));
}

#[tokio::test]
async fn a_token_grows_old_in_the_queue_too() {
    let mut desk = Desk::new().await;
    let one = desk.idle();
    one.tap(&[events::text(USER, "🥚")]).await;
    desk.pass(REPLY_WINDOW);
    let _another = desk.start();
    let event = desk.next().await;
    assert_eq!(event.reply("late").await, Err(SendError::NoToken));
    assert_eq!(event.say("late").await, Ok(SendStatus::Accepted));
    assert_eq!(desk.said().await.endpoint, ApiEndpoint::Push);
}

#[tokio::test]
async fn a_reply_is_not_repeated_where_only_this_process_can_know_of_it() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    desk.store.always(Some(StoreFault::LostQuestion));
    line.tap(&[events::text(USER, "🥚")]).await;
    let first = desk.next().await;
    assert_eq!(first.reply("one").await, Ok(SendStatus::Accepted));
    first.fails(EventHandlerError::retry("after the reply"));
    let second = desk.next().await;
    assert_eq!(second.say("two").await, Err(SendError::AlreadyTried));
    assert_eq!((desk.api.accepted_calls().len(), desk.api.violations().len()), (1, 0));
}

#[tokio::test]
async fn reply_without_a_stored_mark_is_not_repeated() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    line.tap(&[events::text(USER, "🥚")]).await;
    let first = desk.next().await;
    desk.store.always(Some(StoreFault::LostQuestion));
    assert_eq!(first.reply("one").await, Ok(SendStatus::Accepted));
    desk.store.always(None);
    first.fails(EventHandlerError::retry("after the reply"));
    let second = desk.next_later().await;
    assert_eq!(second.say("two").await, Err(SendError::AlreadyTried));
    assert_eq!((desk.api.accepted_calls().len(), desk.api.violations().len()), (1, 0));
}

#[tokio::test]
async fn where_nobody_can_say_whether_another_process_replied_it_did() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().reply_window(LEASE * 2);
    let one = desk.start();
    one.tap(&[events::text(USER, "🥚")]).await;
    let first = desk.next().await;
    desk.api.inject(ApiEndpoint::Reply, ApiFault::CutAfter);
    assert_eq!(first.say("one").await, Err(SendError::OutcomeUnknown));
    one.kill();
    let _another = desk.start();
    desk.outlive();
    let second = desk.next().await;
    desk.store.always(Some(StoreFault::LostQuestion));
    assert_eq!(second.say("two").await, Err(SendError::AlreadyTried));
    assert_eq!((desk.api.accepted_calls().len(), desk.api.violations().len()), (1, 0));
}

#[tokio::test]
async fn a_push_with_a_name_is_sent_once_whatever_else_is_pushed() {
    let mut desk = Desk::new().await;
    let one = desk.start();
    one.tap(&[events::follow(USER)]).await;
    let first = desk.next().await;
    assert_eq!(first.push_named("a", "one").await, Ok(SendStatus::Accepted));
    one.kill();
    let _another = desk.start();
    desk.outlive();
    let second = desk.next().await;
    assert_eq!(second.push_named("b", "two").await, Ok(SendStatus::Accepted));
    assert_eq!(second.push_named("a", "one").await, Ok(SendStatus::AlreadyAccepted));
    assert_eq!((desk.api.accepted_calls().len(), desk.api.violations().len()), (2, 0));
}
