//! Duplicates in flight, what is told of them, and the end of a server.

use std::time::Duration;

use crate::common::{Arrived, Door, Heard, Runs, app, memory, post, send};
use axum::Router;
use axum::http::StatusCode;
use hapax_http::{IdempotencyConfig, IdempotencyEvent, IdempotencyLayer};
use tokio::task::JoinHandle;

/// An app whose handler waits at a door and answers with this status and its run.
fn at_the_door(config: IdempotencyConfig, status: StatusCode) -> (Router, Door, Runs) {
    let (door, runs) = (Door::default(), Runs::default());
    let (inside, counted) = (door.clone(), runs.clone());
    let app = app(memory().0, config, move || async move {
        inside.pass().await;
        (status, counted.add().to_string())
    });
    (app, door, runs)
}

fn sending(app: &Router, key: &'static str, body: &'static str) -> JoinHandle<Arrived> {
    let app = app.clone();
    tokio::spawn(async move { send(&app, post(key, body)).await })
}

#[tokio::test]
async fn a_duplicate_waits_is_woken_and_gets_the_answer() {
    let heard = Heard::default();
    // Nobody would wake it for an hour but the settle.
    let config = heard.config().with_wait(Duration::from_secs(3600));
    let (app, door, runs) = at_the_door(config, StatusCode::OK);
    let first = sending(&app, "k", "");
    door.knocked().await;
    let second = sending(&app, "k", "");
    tokio::task::yield_now().await;
    door.let_one_in();
    assert_eq!(first.await.unwrap().body, "1");
    let second = second.await.unwrap();
    assert_eq!((&second.body[..], second.is_replay(), runs.count()), (&b"1"[..], true, 1));
    assert_eq!(heard.count(IdempotencyEvent::Waited), 1);
    // Who comes later did not wait, however slow the store is.
    assert!(send(&app, post("k", "")).await.is_replay());
    assert_eq!(
        (heard.count(IdempotencyEvent::Waited), heard.count(IdempotencyEvent::Replayed)),
        (1, 1)
    );
    let mut outcomes: Vec<_> = heard.answered().into_iter().map(|(outcome, _)| outcome).collect();
    outcomes.sort_by_key(|outcome| outcome.as_str());
    assert_eq!(
        outcomes,
        [IdempotencyEvent::Replayed, IdempotencyEvent::Started, IdempotencyEvent::Waited]
    );
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_waited_in_vain_is_told_when_to_ask_again() {
    let heard = Heard::default();
    let (app, door, _) = at_the_door(heard.config(), StatusCode::OK);
    let _first = sending(&app, "k", "");
    door.knocked().await;
    let since = tokio::time::Instant::now();
    let second = send(&app, post("k", "")).await;
    assert_eq!((second.status.as_u16(), second.code().as_str()), (409, "in-progress"));
    assert!(second.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(since.elapsed(), *IdempotencyConfig::new().wait());
    assert_eq!(heard.answered(), [(IdempotencyEvent::Conflict, *IdempotencyConfig::new().wait())]);
}

#[tokio::test(start_paused = true)]
async fn without_a_wait_a_duplicate_is_told_at_once() {
    let (app, door, _) = at_the_door(crate::common::impatient(), StatusCode::OK);
    let _first = sending(&app, "k", "");
    door.knocked().await;
    let since = tokio::time::Instant::now();
    assert_eq!(send(&app, post("k", "")).await.code(), "in-progress");
    assert_eq!(since.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn another_body_is_refused_while_the_first_still_runs() {
    let heard = Heard::default();
    let (app, door, runs) = at_the_door(heard.config(), StatusCode::OK);
    let first = sending(&app, "k", "tea");
    door.knocked().await;
    assert_eq!(send(&app, post("k", "coffee")).await.code(), "key-reused");
    assert_eq!(heard.count(IdempotencyEvent::Mismatch), 1);
    door.let_one_in();
    first.await.unwrap();
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_duplicate_runs_itself_where_the_first_one_failed() {
    let config = IdempotencyConfig::new().with_wait(Duration::from_secs(3600));
    let (app, door, runs) = at_the_door(config, StatusCode::SERVICE_UNAVAILABLE);
    let first = sending(&app, "k", "");
    door.knocked().await;
    let second = sending(&app, "k", "");
    tokio::task::yield_now().await;
    door.let_one_in();
    assert_eq!(first.await.unwrap().body, "1");
    door.knocked().await;
    door.let_one_in();
    let second = second.await.unwrap();
    assert_eq!((&second.body[..], second.is_replay(), runs.count()), (&b"2"[..], false, 2));
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_while_the_handler_runs() {
    let clock = std::sync::Arc::new(hapax_core::ManualClock::default());
    let store = std::sync::Arc::new(hapax_core::memory::MemoryStore::new(clock.clone()));
    let door = Door::default();
    let inside = door.clone();
    let app = app(store, crate::common::impatient(), move || async move {
        inside.pass().await;
        "done"
    });
    let first = sending(&app, "k", "");
    door.knocked().await;
    for _ in 0..100 {
        clock.advance(Duration::from_secs(5));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(send(&app, post("k", "")).await.code(), "in-progress");
    }
    door.let_one_in();
    assert_eq!(first.await.unwrap().body, "done");
}

#[tokio::test]
async fn every_event_is_told_in_its_order() {
    let heard = Heard::default();
    let app = app(memory().0, heard.config(), || async { "ok" });
    send(&app, post("k", "")).await;
    send(&app, post("k", "")).await;
    send(&app, post("k", "other")).await;
    send(&app, post("", "")).await;
    let events = [
        IdempotencyEvent::Started,
        IdempotencyEvent::Kept,
        IdempotencyEvent::Replayed,
        IdempotencyEvent::Mismatch,
        IdempotencyEvent::Refused,
    ];
    assert_eq!(heard.events(), events);
    let outcomes: Vec<_> = heard.answered().into_iter().map(|(outcome, _)| outcome).collect();
    assert_eq!(
        outcomes,
        [
            IdempotencyEvent::Started,
            IdempotencyEvent::Replayed,
            IdempotencyEvent::Mismatch,
            IdempotencyEvent::Refused
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_what_runs_and_lets_nothing_new_in() {
    let (door, runs) = (Door::default(), Runs::default());
    let (inside, counted) = (door.clone(), runs.clone());
    let layer = IdempotencyLayer::new(memory().0);
    let handler = move || async move {
        inside.pass().await;
        counted.add().to_string()
    };
    let app = Router::new().fallback(handler).layer(layer.clone());
    let first = sending(&app, "k", "");
    door.knocked().await;
    // A client that went away leaves its run behind.
    first.abort();
    let waiter = sending(&app, "k", "");
    tokio::task::yield_now().await;
    assert_eq!(layer.running(), 1);

    let drained = layer.drain();
    let refused = send(&app, post("new", "")).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "shutting-down"));
    assert_eq!(refused.problem()["retryable"], true);
    let mut drained = std::pin::pin!(drained);
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut drained).await.is_err());
    door.let_one_in();
    drained.await;
    assert_eq!((layer.running(), runs.count()), (0, 1));
    // Who waited already gets the answer.
    assert_eq!(waiter.await.unwrap().body, "1");
    layer.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_until_what_ran_is_stored() {
    let store = hapax_conformance::Faulty::new(memory().0);
    let failing = store.clone();
    let layer = IdempotencyLayer::new(std::sync::Arc::new(store.clone()));
    let handler = move || async move {
        failing.always(Some(hapax_conformance::Fault::LostQuestion));
        "done"
    };
    let app = Router::new().fallback(handler).layer(layer.clone());
    assert_eq!(send(&app, post("k", "")).await.body, "done");
    let mut drained = std::pin::pin!(layer.drain());
    assert!(tokio::time::timeout(Duration::from_secs(20), &mut drained).await.is_err());
    store.always(None);
    drained.await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_granted_after_the_drain_began_is_given_back() {
    let (store, _) = memory();
    let faulty = hapax_conformance::Faulty::new(store.clone());
    let runs = Runs::default();
    let counted = runs.clone();
    let layer = IdempotencyLayer::new(std::sync::Arc::new(faulty.clone()))
        .with_config(crate::common::impatient());
    let handler = move || async move { counted.add().to_string() };
    let app = Router::new().fallback(handler).layer(layer.clone());
    faulty.plan([hapax_conformance::Fault::Stall(Duration::from_millis(50))]);
    let request = sending(&app, "k", "");
    tokio::time::sleep(Duration::from_millis(5)).await;
    layer.drain().await;
    assert_eq!(request.await.unwrap().code(), "shutting-down");
    // Another server may run it.
    let other = crate::common::app(store, IdempotencyConfig::new(), || async { "elsewhere" });
    assert_eq!(send(&other, post("k", "")).await.body, "elsewhere");
    assert_eq!(runs.count(), 0);
}
