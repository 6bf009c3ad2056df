use std::time::Duration;

use hapax_conformance::{Fault, StorePart};
use hapax_core::lock::{LockConfig, Locks};
use hapax_core::{Operation, Tenant};
use hapax_line::simulator::events;
use hapax_line::{BUSY_TEXT, EventHandlerError, LineEvent};
use std::sync::Arc;

use crate::gateway::desk::{Desk, LEASE, USER};

fn key() -> String {
    format!("processing:user:{USER}")
}

fn locks(desk: &Desk) -> Locks {
    Locks::new(Arc::new(desk.store.clone()))
}

#[tokio::test]
async fn batch_first_event_runs_and_the_others_are_told_to_wait() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    let taps: Vec<_> = (0..5).map(|i| events::text(USER, &format!("🥚 {i}"))).collect();
    line.tap(&taps).await;
    let first = desk.next().await;
    assert_eq!(first.event.text(), Some("🥚 0"));
    let mut tokens = Vec::new();
    for _ in 0..4 {
        let said = desk.said().await;
        assert_eq!(said.texts(), [BUSY_TEXT]);
        tokens.extend(said.reply_token);
    }
    tokens.sort();
    let mut expected: Vec<_> =
        taps[1..].iter().map(|tap| tap["replyToken"].as_str().unwrap()).collect();
    expected.sort_unstable();
    assert_eq!(tokens, expected);
    assert!(locks(&desk).look(&key()).await.unwrap().held);
    first.done();
    desk.settled(0).await;
    assert!(!locks(&desk).look(&key()).await.unwrap().held);
    // The next event of the user gets the lock.
    line.tap(&[events::text(USER, "🥚 later")]).await;
    assert_eq!(desk.next().await.event.text(), Some("🥚 later"));
    assert_eq!(desk.api.violations(), Vec::<String>::new());
}

/// However quick the bot is, no later event of the batch gets the lock after the first releases it.
#[tokio::test]
async fn batch_is_decided_before_the_bot_gets_the_first_event() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    let taps: Vec<_> = (0..5).map(|i| events::text(USER, &format!("🥚 {i}"))).collect();
    line.tap(&taps).await;
    let first = desk.next().await;
    let commands = hapax_core::command::Commands::new(Arc::new(desk.store.clone()));
    for tap in &taps[1..] {
        let event = LineEvent::parse(&"Uf00dbot".into(), &tap.to_string()).unwrap();
        let id = event.id(&Tenant::default()).to_string();
        assert!(commands.look(Operation("line"), &id).await.unwrap().is_some(), "it is begun");
    }
    first.done();
    for _ in 0..4 {
        assert_eq!(desk.said().await.texts(), [BUSY_TEXT]);
    }
    desk.settled(0).await;
}

#[tokio::test]
async fn events_of_several_users_are_handled_side_by_side() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    let taps: Vec<_> = (0..9).map(|i| events::text(&format!("Uf00d{i}"), "🥚")).collect();
    line.tap(&taps).await;
    let mut all = Vec::new();
    for _ in 0..9 {
        all.push(desk.next().await);
    }
}

#[tokio::test]
async fn follow_unfollow_unknown_events_and_those_of_nobody_are_not_locked() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    let _held = locks(&desk).acquire(&key(), &LockConfig::default()).await.unwrap();
    let nobody = events::without_user(events::text(USER, "🥚"));
    let free = [events::follow(USER), events::unfollow(USER), events::unknown(USER), nobody];
    line.tap(&free).await;
    for _ in 0..4 {
        desk.next().await.done();
    }
    desk.settled(0).await;
    assert!(desk.api.accepted_calls().is_empty());
}

#[tokio::test]
async fn what_was_admitted_once_waits_for_the_lock_when_it_is_tried_again() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    line.tap(&[events::text(USER, "🥚 one")]).await;
    let one = desk.next().await;
    let (first, fence) = (one.id, one.fence);
    // Another event takes the lock before the retry is due.
    one.fails(EventHandlerError::retry("not yet"));
    desk.until(async || !locks(&desk).look(&key()).await.unwrap().held).await;
    line.tap(&[events::text(USER, "🥚 two")]).await;
    let two = desk.next().await;
    assert_eq!(two.event.text(), Some("🥚 two"));
    // Once the first event is back in the queue, its retry is due within a second.
    desk.until(async || {
        let depth = hapax_core::Queue::depth(&desk.store, desk.queue(), None).await.unwrap();
        (depth.waiting, depth.in_flight) == (1, 1)
    })
    .await;
    desk.pass(Duration::from_secs(1));
    // The retry has begun and waits for the lock, without a busy text.
    let begun = format!("{first}");
    let commands = hapax_core::command::Commands::new(Arc::new(desk.store.clone()));
    desk.until(async || {
        let view = commands.look(Operation("line"), &begun).await.unwrap();
        view.is_some_and(|view| view.attempt == 2)
    })
    .await;
    two.done();
    let again = desk.next().await;
    assert_eq!((again.id, again.attempt), (first, 2));
    assert!(again.fence > fence);
    again.done();
    desk.settled(0).await;
    assert!(desk.api.accepted_calls().is_empty());
}

#[tokio::test]
async fn an_event_whose_user_cannot_be_told_any_more_waits_for_the_lock() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().reply_window(Duration::ZERO);
    let line = desk.start();
    line.tap(&[events::text(USER, "🥚 one"), events::text(USER, "🥚 two")]).await;
    // By now the gateway has decided about the second event.
    desk.next().await.done();
    let two = desk.next_later().await;
    assert_eq!((two.event.text(), two.attempt), (Some("🥚 two"), 1));
    assert!(desk.api.accepted_calls().is_empty());
}

#[tokio::test]
async fn in_standby_nobody_is_told_to_wait() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    line.tap(&[events::text(USER, "🥚")]).await;
    let first = desk.next().await;
    line.tap(&[events::standby(events::text(USER, "🥚"))]).await;
    desk.until(async || {
        let depth = hapax_core::Queue::depth(&desk.store, desk.queue(), None).await.unwrap();
        (depth.waiting, depth.in_flight) == (0, 1)
    })
    .await;
    first.done();
    desk.settled(0).await;
    line.tap(&[events::standby(events::text(USER, "🥚"))]).await;
    let standby = desk.next().await;
    assert!(standby.reply("no").await.is_err() && standby.push("no").await.is_err());
    assert!(desk.api.accepted_calls().is_empty() && desk.api.violations().is_empty());
}

#[tokio::test]
async fn retried_event_admitted_without_store_waits_for_the_lock() {
    let mut desk = Desk::new().await;
    let line = desk.start();
    desk.store.only(Some(StorePart::Claims));
    desk.store.always(Some(Fault::LostQuestion));
    line.tap(&[events::text(USER, "🥚")]).await;
    let first = desk.next().await;
    assert_eq!((first.attempt, first.fence), (1, None));
    desk.store.always(None);
    let id = first.id.to_string();
    // The TTL outlasts any delay until the release.
    let hold = LockConfig::default().ttl(LEASE);
    let held = locks(&desk).acquire(&key(), &hold).await.unwrap();
    first.fails(EventHandlerError::retry("not yet"));
    let commands = hapax_core::command::Commands::new(Arc::new(desk.store.clone()));
    desk.until(async || {
        desk.pass(Duration::from_millis(20));
        commands.look(Operation("line"), &id).await.unwrap().is_some()
    })
    .await;
    // A busy text for the retry would be sent before this one.
    line.tap(&[events::text(USER, "🥚 new")]).await;
    assert_eq!(desk.said().await.texts(), [BUSY_TEXT]);
    held.release().await.unwrap();
    let second = desk.next_later().await;
    assert_eq!((second.event.text(), second.attempt), (Some("🥚"), 2));
    assert_eq!(desk.api.accepted_calls().len(), 1);
}

#[tokio::test]
async fn an_event_that_is_not_locked_waits_for_no_other_of_its_user() {
    let mut desk = Desk::new().await;
    desk.config = desk.config.clone().store_timeout(crate::gateway::desk::PATIENCE * 10);
    let line = desk.start();
    desk.store.only(Some(StorePart::Claims));
    desk.store.plan([Fault::NoAnswer]);
    line.tap(&[events::follow(USER), events::unfollow(USER)]).await;
    desk.next().await.done();
}
