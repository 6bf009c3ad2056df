//! Unlocked events of one source: in order, one at a time.

use std::collections::BTreeSet;

use hapax_conformance::Fault;
use hapax_line::simulator::events;
use hapax_line::{BUSY_TEXT, EventHandlerError, LockRules};
use serde_json::Value;

use crate::gateway::setup::{InHand, Running, Setup, USER};

async fn unlocked() -> Setup {
    Setup::with(|config| config.rules(LockRules::unlocked())).await
}

fn texts(user: &str) -> [Value; 2] {
    ["1", "2"].map(|text| events::text(user, text))
}

/// A gateway that finds two texts of one user in its queue.
async fn with_two_texts() -> (Setup, Running) {
    let setup = unlocked().await;
    setup.idle().tap(&texts(USER)).await;
    let line = setup.start();
    (setup, line)
}

/// The next events of the bot, one of each of so many users, all with this text.
async fn one_of_each(setup: &mut Setup, users: usize, text: &str) -> Vec<InHand> {
    let mut all = Vec::new();
    for _ in 0..users {
        all.push(setup.next().await);
    }
    let seen: BTreeSet<_> = all.iter().map(|event| event.event.user_id().unwrap()).collect();
    assert_eq!(seen.len(), users, "one event of each user");
    assert!(all.iter().all(|event| event.event.text() == Some(text)));
    all
}

/// Lets the bot handle both texts of so many users: the second ones come when all first ones have.
async fn both_texts_of_each(mut setup: Setup, users: usize) {
    for text in ["1", "2"] {
        for event in one_of_each(&mut setup, users, text).await {
            event.done();
        }
    }
    setup.settled(0).await;
}

/// Asserts that nothing else has reached the bot: it would come before this new event.
async fn nothing_else_is_in_hand(setup: &mut Setup, line: &Running) {
    line.tap(&[events::text("Uf00dbarrier", "barrier")]).await;
    let next = setup.next().await;
    assert_eq!(next.event.text(), Some("barrier"));
    next.done();
}

#[tokio::test]
async fn fault_09_events_of_a_source_run_one_at_a_time_in_order() {
    let setup = unlocked().await;
    let idle = setup.idle();
    for user in 0..20 {
        idle.tap(&texts(&format!("Uf00d{user}"))).await;
    }
    let _line = setup.start();
    both_texts_of_each(setup, 20).await;
}

#[tokio::test]
async fn fault_09_order_of_a_source_holds_over_two_gateways() {
    let setup = unlocked().await;
    let lines = [setup.start(), setup.start()];
    for user in 0..20 {
        let [one, two] = texts(&format!("Uf00d{user}"));
        lines[user % 2].tap(&[one]).await;
        lines[1 - user % 2].tap(&[two]).await;
    }
    both_texts_of_each(setup, 20).await;
}

#[tokio::test]
async fn fault_09_failed_event_lets_those_behind_it_pass() {
    let (mut setup, _line) = with_two_texts().await;
    let one = setup.next().await;
    assert_eq!(one.event.text(), Some("1"));
    one.fails(EventHandlerError::retry("not yet"));
    // The store's clock stands still, so the retry is not due.
    let two = setup.next().await;
    assert_eq!((two.event.text(), two.attempt), (Some("2"), 1));
    two.done();
    let again = setup.next_later().await;
    assert_eq!((again.event.text(), again.attempt), (Some("1"), 2));
    again.done();
    setup.settled(0).await;
}

#[tokio::test]
async fn fault_09_retried_event_runs_beside_no_other_of_its_source() {
    let (mut setup, line) = with_two_texts().await;
    setup.next().await.fails(EventHandlerError::retry("not yet"));
    let two = setup.next().await;
    assert_eq!(two.event.text(), Some("2"));
    setup.queued(1, 1).await;
    setup.pass(std::time::Duration::from_secs(1));
    // The retry is leased, and waits for the source.
    setup.queued(0, 2).await;
    nothing_else_is_in_hand(&mut setup, &line).await;
    two.done();
    let again = setup.next_later().await;
    assert_eq!((again.event.text(), again.attempt), (Some("1"), 2));
    again.done();
    setup.settled(0).await;
}

#[tokio::test]
async fn fault_09_group_chat_is_one_source() {
    let mut setup = unlocked().await;
    let in_group = |user: &str, text| events::in_group(events::text(user, text), "Cf00d1");
    setup.idle().tap(&[in_group(USER, "1"), in_group("Uf00d2", "2")]).await;
    let line = setup.start();
    let one = setup.next().await;
    assert_eq!(one.event.text(), Some("1"));
    nothing_else_is_in_hand(&mut setup, &line).await;
    // The same user alone with the bot is another source.
    line.tap(&[events::text(USER, "alone")]).await;
    let alone = setup.next().await;
    assert_eq!(alone.event.text(), Some("alone"));
    one.done();
    assert_eq!(setup.next().await.event.text(), Some("2"));
}

/// The rules lock texts and do not lock follows.
#[tokio::test]
async fn fault_09_locked_event_neither_waits_nor_holds_up() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    line.tap(&[events::follow(USER)]).await;
    let follow = setup.next().await;
    line.tap(&[events::text(USER, "🥚")]).await;
    let locked = setup.next().await;
    assert_eq!(locked.event.text(), Some("🥚"));
    line.tap(&[events::text(USER, "🥚 again")]).await;
    assert_eq!(setup.accepted().await.texts(), [BUSY_TEXT]);
    // The second follow waits for the first, not for the lock.
    line.tap(&[events::follow(USER)]).await;
    nothing_else_is_in_hand(&mut setup, &line).await;
    follow.done();
    let second = setup.next().await;
    assert_eq!(second.event.text(), None);
    second.done();
    locked.done();
    setup.settled(0).await;
}

#[tokio::test]
async fn fault_09_order_of_a_source_holds_while_the_store_is_down() {
    let mut setup = unlocked().await;
    let line = setup.start();
    setup.store.always(Some(Fault::LostQuestion));
    line.tap(&texts(USER)).await;
    let one = setup.next().await;
    assert_eq!(one.event.text(), Some("1"));
    nothing_else_is_in_hand(&mut setup, &line).await;
    one.fails(EventHandlerError::retry("not yet"));
    let two = setup.next().await;
    assert_eq!(two.event.text(), Some("2"), "a failed event lets those behind it pass");
    nothing_else_is_in_hand(&mut setup, &line).await;
    two.done();
    let again = setup.next().await;
    assert_eq!((again.event.text(), again.attempt), (Some("1"), 2));
}

#[tokio::test]
async fn fault_09_order_of_a_source_holds_after_an_outage_of_the_bot() {
    let (mut setup, _line) = with_two_texts().await;
    for _ in 0..3 {
        let one = setup.next_later().await;
        assert_eq!(one.event.text(), Some("1"));
        one.fails(EventHandlerError::away("gone"));
    }
    for text in ["1", "2"] {
        let event = setup.next_later().await;
        assert_eq!(event.event.text(), Some(text));
        event.done();
    }
    setup.settled(0).await;
}
