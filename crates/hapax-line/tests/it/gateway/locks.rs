use std::time::Duration;

use hapax_conformance::{Fault, StorePart};
use hapax_core::lock::{LockConfig, Locks};
use hapax_line::simulator::events;
use hapax_line::{BUSY_TEXT, EventHandlerError};
use std::sync::Arc;

use crate::gateway::setup::{LEASE, Setup, USER, id_of};

fn key() -> String {
    format!("processing:user:{USER}")
}

fn locks(setup: &Setup) -> Locks {
    Locks::new(Arc::new(setup.store.clone()))
}

#[tokio::test]
async fn batch_first_event_runs_and_the_others_are_told_to_wait() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    let taps: Vec<_> = (0..5).map(|i| events::text(USER, &format!("🥚 {i}"))).collect();
    line.tap(&taps).await;
    let first = setup.next().await;
    assert_eq!(first.event.text(), Some("🥚 0"));
    let mut tokens = Vec::new();
    for _ in 0..4 {
        let said = setup.accepted().await;
        assert_eq!(said.texts(), [BUSY_TEXT]);
        tokens.extend(said.reply_token);
    }
    tokens.sort();
    let mut expected: Vec<_> =
        taps[1..].iter().map(|tap| tap["replyToken"].as_str().unwrap()).collect();
    expected.sort_unstable();
    assert_eq!(tokens, expected);
    assert!(locks(&setup).look(&key()).await.unwrap().held);
    first.done();
    setup.settled(0).await;
    assert!(!locks(&setup).look(&key()).await.unwrap().held);
    // The next event of the user gets the lock.
    line.tap(&[events::text(USER, "🥚 later")]).await;
    assert_eq!(setup.next().await.event.text(), Some("🥚 later"));
    assert_eq!(setup.api.violations(), Vec::<String>::new());
}

/// However quick the bot is, no later event of the batch gets the lock after the first releases it.
#[tokio::test]
async fn batch_is_decided_before_the_bot_gets_the_first_event() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    let taps: Vec<_> = (0..5).map(|i| events::text(USER, &format!("🥚 {i}"))).collect();
    line.tap(&taps).await;
    let first = setup.next().await;
    for tap in &taps[1..] {
        assert!(setup.command(id_of(tap)).await.is_some(), "it is begun");
    }
    first.done();
    for _ in 0..4 {
        assert_eq!(setup.accepted().await.texts(), [BUSY_TEXT]);
    }
    setup.settled(0).await;
}

#[tokio::test]
async fn events_of_several_users_are_handled_side_by_side() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    let taps: Vec<_> = (0..9).map(|i| events::text(&format!("Uf00d{i}"), "🥚")).collect();
    line.tap(&taps).await;
    let mut all = Vec::new();
    for _ in 0..9 {
        all.push(setup.next().await);
    }
}

#[tokio::test]
async fn follow_unfollow_unknown_events_and_those_of_nobody_are_not_locked() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    let _held = locks(&setup).acquire(&key(), &LockConfig::default()).await.unwrap();
    let nobody = events::without_user(events::text(USER, "🥚"));
    let free = [events::follow(USER), events::unfollow(USER), events::unknown(USER), nobody];
    line.tap(&free).await;
    for _ in 0..4 {
        setup.next().await.done();
    }
    setup.settled(0).await;
    assert!(setup.api.accepted_calls().is_empty());
}

#[tokio::test]
async fn lock_is_waited_for_by_a_retried_event() {
    let mut setup = Setup::new().await;
    let (line, one) = setup.start_with(events::text(USER, "🥚 one")).await;
    let (first, fence) = (one.id, one.fence);
    // Another event takes the lock before the retry is due.
    one.fails(EventHandlerError::retry("not yet"));
    setup.until(async || !locks(&setup).look(&key()).await.unwrap().held).await;
    line.tap(&[events::text(USER, "🥚 two")]).await;
    let two = setup.next().await;
    assert_eq!(two.event.text(), Some("🥚 two"));
    // Once the first event is back in the queue, its retry is due within a second.
    setup.queued(1, 1).await;
    setup.pass(Duration::from_secs(1));
    // The retry has begun and waits for the lock, without a busy text.
    let is_retried = async || setup.command(first).await.is_some_and(|view| view.attempt == 2);
    setup.until(is_retried).await;
    two.done();
    let again = setup.next().await;
    assert_eq!((again.id, again.attempt), (first, 2));
    assert!(again.fence > fence);
    again.done();
    setup.settled(0).await;
    assert!(setup.api.accepted_calls().is_empty());
}

#[tokio::test]
async fn lock_is_waited_for_where_the_reply_token_is_too_old() {
    let mut setup = Setup::with(|config| config.reply_window(Duration::ZERO)).await;
    let line = setup.start();
    line.tap(&[events::text(USER, "🥚 one"), events::text(USER, "🥚 two")]).await;
    // By now the gateway has decided about the second event.
    setup.next().await.done();
    let two = setup.next_later().await;
    assert_eq!((two.event.text(), two.attempt), (Some("🥚 two"), 1));
    assert!(setup.api.accepted_calls().is_empty());
}

#[tokio::test]
async fn standby_event_gets_no_busy_text() {
    let mut setup = Setup::new().await;
    let (line, first) = setup.start_with(events::text(USER, "🥚")).await;
    line.tap(&[events::standby(events::text(USER, "🥚"))]).await;
    setup.queued(0, 1).await;
    first.done();
    setup.settled(0).await;
    line.tap(&[events::standby(events::text(USER, "🥚"))]).await;
    let standby = setup.next().await;
    assert!(standby.reply("no").await.is_err() && standby.push("no").await.is_err());
    assert!(setup.api.accepted_calls().is_empty() && setup.api.violations().is_empty());
}

#[tokio::test]
async fn fault_23_group_gets_the_busy_text_only_when_it_addressed_the_bot() {
    let mut setup = Setup::new().await;
    let in_group = |event| events::in_group(event, "Cf00d1");
    let (line, first) = setup.start_with(in_group(events::text(USER, "🥚"))).await;
    line.tap(&[in_group(events::text(USER, "🥚 chatter"))]).await;
    setup.queued(0, 1).await;
    let mentioned = events::mentioning(in_group(events::text(USER, "🥚")), "bot", "Ub07", true);
    line.tap(&[mentioned]).await;
    assert_eq!(setup.accepted().await.texts(), [BUSY_TEXT]);
    line.tap(&[in_group(events::postback(USER, "action=settings"))]).await;
    assert_eq!(setup.accepted().await.texts(), [BUSY_TEXT]);
    first.done();
    setup.settled(0).await;
    setup.assert_accepted(2);
}

#[tokio::test]
async fn retried_event_admitted_without_store_waits_for_the_lock() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    setup.store.only(Some(StorePart::Claims));
    setup.store.always(Some(Fault::LostQuestion));
    line.tap(&[events::text(USER, "🥚")]).await;
    let first = setup.next().await;
    assert_eq!((first.attempt, first.fence), (1, None));
    setup.store.always(None);
    let id = first.id;
    // The TTL outlasts any delay until the release.
    let hold = LockConfig::default().ttl(LEASE);
    let held = locks(&setup).acquire(&key(), &hold).await.unwrap();
    first.fails(EventHandlerError::retry("not yet"));
    setup
        .until(async || {
            setup.pass(Duration::from_millis(20));
            setup.command(id).await.is_some()
        })
        .await;
    // A busy text for the retry would be sent before this one.
    line.tap(&[events::text(USER, "🥚 new")]).await;
    assert_eq!(setup.accepted().await.texts(), [BUSY_TEXT]);
    held.release().await.unwrap();
    let second = setup.next_later().await;
    // The store counts the attempts that it knows of.
    assert_eq!((second.event.text(), second.attempt), (Some("🥚"), 1));
    assert!(second.fence.is_some());
    assert_eq!(setup.api.accepted_calls().len(), 1);
}
