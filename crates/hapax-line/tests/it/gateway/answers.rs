use std::time::Duration;

use hapax_conformance::Fault as StoreFault;
use hapax_line::simulator::{ApiEndpoint, ApiFault, events};
use hapax_line::{EventHandlerError, SendError, SendStatus};

use crate::gateway::setup::{LEASE, REPLY_WINDOW, SendBy, Setup, USER};

#[tokio::test]
async fn reply_token_is_used_once_over_all_attempts() {
    let mut setup = Setup::new().await;
    let (_line, first) = setup.start_with(events::text(USER, "🥚")).await;
    assert_eq!(first.reply("one").await, Ok(SendStatus::Accepted));
    assert_eq!(first.reply("two").await, Err(SendError::AlreadyTried));
    first.fails(EventHandlerError::retry("after the reply"));
    let second = setup.next_later().await;
    assert_eq!(second.reply_or_push("three").await, Err(SendError::AlreadyTried));
    setup.assert_accepted(1);
}

/// The first process replies and is killed before it knows the outcome. The second one must not reply,
/// whether or not the store can tell it of the first reply.
async fn a_killed_process_may_have_replied(mut setup: Setup, store_fault: Option<StoreFault>) {
    let (line, first) = setup.start_with(events::text(USER, "🥚")).await;
    setup.api.inject(ApiEndpoint::Reply, ApiFault::CutAfter);
    assert_eq!(first.reply_or_push("one").await, Err(SendError::OutcomeUnknown));
    let (_line, second) = setup.take_over(line).await;
    setup.store.always(store_fault);
    assert_eq!(second.reply_or_push("two").await, Err(SendError::AlreadyTried));
    setup.assert_accepted(1);
}

#[tokio::test]
async fn reply_with_unknown_outcome_is_never_repeated() {
    a_killed_process_may_have_replied(Setup::new().await, None).await;
}

#[tokio::test]
async fn reply_is_refused_where_the_store_cannot_rule_out_another() {
    let setup = Setup::with(|config| config.reply_window(LEASE * 2)).await;
    a_killed_process_may_have_replied(setup, Some(StoreFault::LostQuestion)).await;
}

#[tokio::test]
async fn push_repeated_after_a_kill_is_sent_once() {
    let mut setup = Setup::new().await;
    let (line, first) = setup.start_with(events::follow(USER)).await;
    assert_eq!(first.push("one").await, Ok(SendStatus::Accepted));
    assert_eq!(first.push("two").await, Ok(SendStatus::Accepted));
    let (_line, second) = setup.take_over(line).await;
    assert_eq!(second.push("one").await, Ok(SendStatus::AlreadyAccepted));
    assert_eq!(second.push("two").await, Ok(SendStatus::AlreadyAccepted));
    assert_eq!(second.push("three").await, Ok(SendStatus::Accepted));
    setup.assert_accepted(3);
}

#[tokio::test]
async fn push_with_a_name_is_sent_once_whatever_else_is_pushed() {
    let mut setup = Setup::new().await;
    let (line, first) = setup.start_with(events::follow(USER)).await;
    assert_eq!(first.send(SendBy::PushNamed("a"), "one").await, Ok(SendStatus::Accepted));
    let (_line, second) = setup.take_over(line).await;
    assert_eq!(second.send(SendBy::PushNamed("b"), "two").await, Ok(SendStatus::Accepted));
    assert_eq!(second.send(SendBy::PushNamed("a"), "one").await, Ok(SendStatus::AlreadyAccepted));
    setup.assert_accepted(2);
}

#[tokio::test]
async fn reply_with_an_old_token_becomes_a_push() {
    let mut setup = Setup::with(|config| config.reply_window(Duration::ZERO)).await;
    let (_line, event) = setup.start_with(events::text(USER, "🥚")).await;
    assert_eq!(event.reply("late").await, Err(SendError::NoToken));
    assert_eq!(event.reply_or_push("late").await, Ok(SendStatus::Accepted));
    let push = setup.accepted().await;
    assert_eq!((push.endpoint, push.to.as_deref()), (ApiEndpoint::Push, Some(USER)));
}

#[tokio::test]
async fn reply_token_grows_old_in_the_queue_too() {
    let mut setup = Setup::new().await;
    setup.idle().tap(&[events::text(USER, "🥚")]).await;
    setup.pass(REPLY_WINDOW);
    let _line = setup.start();
    let event = setup.next().await;
    assert_eq!(event.reply("late").await, Err(SendError::NoToken));
    assert_eq!(event.reply_or_push("late").await, Ok(SendStatus::Accepted));
    assert_eq!(setup.accepted().await.endpoint, ApiEndpoint::Push);
}

#[tokio::test]
async fn reply_during_an_outage_is_not_repeated_by_this_process() {
    let mut setup = Setup::new().await;
    setup.store.always(Some(StoreFault::LostQuestion));
    let (_line, first) = setup.start_with(events::text(USER, "🥚")).await;
    assert_eq!(first.reply("one").await, Ok(SendStatus::Accepted));
    first.fails(EventHandlerError::retry("after the reply"));
    let second = setup.next().await;
    assert_eq!(second.reply_or_push("two").await, Err(SendError::AlreadyTried));
    setup.assert_accepted(1);
}

#[tokio::test]
async fn reply_without_a_stored_mark_is_not_repeated() {
    let mut setup = Setup::new().await;
    let (_line, first) = setup.start_with(events::text(USER, "🥚")).await;
    setup.store.always(Some(StoreFault::LostQuestion));
    assert_eq!(first.reply("one").await, Ok(SendStatus::Accepted));
    setup.store.always(None);
    first.fails(EventHandlerError::retry("after the reply"));
    let second = setup.next_later().await;
    assert_eq!(second.reply_or_push("two").await, Err(SendError::AlreadyTried));
    setup.assert_accepted(1);
}
