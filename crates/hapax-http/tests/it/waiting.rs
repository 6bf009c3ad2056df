//! Concurrent duplicates, hooks, and draining.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{
    HandlerGate, RecordedEvents, Runs, app, gated_app, keyed, memory, post, send, sending,
    without_wait,
};
use axum::Router;
use axum::http::StatusCode;
use hapax_conformance::{Fault, FaultyStore};
use hapax_core::Claims;
use hapax_core::claims::ClaimState;
use hapax_http::{IdempotencyConfig, IdempotencyEvent as Event, IdempotencyLayer};
use tokio::runtime::Handle;

#[tokio::test]
async fn duplicate_waits_and_gets_the_response() {
    let recorded = RecordedEvents::default();
    // Only the settle can wake the duplicate within an hour.
    let config = recorded.config().with_wait(Duration::from_secs(3600));
    let (app, gate, runs) = gated_app(memory().0, config, StatusCode::OK);
    let first = sending(&app, "k", "");
    gate.reached().await;
    let second = sending(&app, "k", "");
    tokio::task::yield_now().await;
    gate.release_one();
    assert_eq!(first.await.unwrap().body, "1");
    let second = second.await.unwrap();
    assert_eq!((&second.body[..], second.is_replay(), runs.count()), (&b"1"[..], true, 1));
    assert_eq!(recorded.count(Event::Waited), 1);
    // A later request does not count as waited, however slow the store is.
    assert!(send(&app, post("k", "")).await.is_replay());
    assert_eq!((recorded.count(Event::Waited), recorded.count(Event::Replayed)), (1, 1));
    let mut outcomes: Vec<_> =
        recorded.answered().into_iter().map(|(outcome, _)| outcome).collect();
    outcomes.sort_by_key(|outcome| outcome.as_str());
    assert_eq!(outcomes, [Event::Replayed, Event::Started, Event::Waited]);
}

#[tokio::test(start_paused = true)]
async fn duplicate_after_wait_gets_retry_after() {
    let recorded = RecordedEvents::default();
    let (app, gate, _) = gated_app(memory().0, recorded.config(), StatusCode::OK);
    let _first = sending(&app, "k", "");
    gate.reached().await;
    let since = tokio::time::Instant::now();
    let second = send(&app, post("k", "")).await;
    second.assert_problem(409, "in-progress");
    assert!(second.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(since.elapsed(), *IdempotencyConfig::new().wait());
    assert_eq!(recorded.answered(), [(Event::Conflict, *IdempotencyConfig::new().wait())]);
}

#[tokio::test(start_paused = true)]
async fn duplicate_without_wait_is_refused_at_once() {
    let (app, gate, _) = gated_app(memory().0, without_wait(), StatusCode::OK);
    let _first = sending(&app, "k", "");
    gate.reached().await;
    let since = tokio::time::Instant::now();
    assert_eq!(send(&app, post("k", "")).await.code(), "in-progress");
    assert_eq!(since.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn key_with_another_body_is_refused_while_running() {
    let recorded = RecordedEvents::default();
    let (app, gate, runs) = gated_app(memory().0, recorded.config(), StatusCode::OK);
    let first = sending(&app, "k", "tea");
    gate.reached().await;
    assert_eq!(send(&app, post("k", "coffee")).await.code(), "key-reused");
    assert_eq!(recorded.count(Event::Mismatch), 1);
    gate.release_one();
    first.await.unwrap();
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn duplicate_runs_when_the_first_one_failed() {
    let config = IdempotencyConfig::new().with_wait(Duration::from_secs(3600));
    let (app, gate, runs) = gated_app(memory().0, config, StatusCode::SERVICE_UNAVAILABLE);
    let first = sending(&app, "k", "");
    gate.reached().await;
    let second = sending(&app, "k", "");
    tokio::task::yield_now().await;
    gate.release_one();
    assert_eq!(first.await.unwrap().body, "1");
    gate.reached().await;
    gate.release_one();
    let second = second.await.unwrap();
    assert_eq!((&second.body[..], second.is_replay(), runs.count()), (&b"2"[..], false, 2));
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_the_handler_runs() {
    let (store, clock) = memory();
    let (app, gate, _) = gated_app(store, without_wait(), StatusCode::OK);
    let first = sending(&app, "k", "");
    gate.reached().await;
    for _ in 0..100 {
        clock.advance(Duration::from_secs(5));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(send(&app, post("k", "")).await.code(), "in-progress");
    }
    gate.release_one();
    assert_eq!(first.await.unwrap().body, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_is_renewed_while_the_handler_blocks_its_thread() {
    let (store, clock) = memory();
    let lease = Duration::from_millis(30);
    let config = without_wait().with_lease(lease);
    let key = keyed(&config, "k", "").key().clone();
    let watched = store.clone();
    let app = app(store, config, async move || {
        tokio::task::block_in_place(|| {
            for _ in 0..5 {
                // The store's clock goes on only after a renewal, so that a slow machine loses no lease.
                clock.advance(lease / 2);
                let deadline = std::time::Instant::now() + Duration::from_secs(60);
                let left = || {
                    let look = watched.look(&key);
                    match Handle::current().block_on(look).unwrap().unwrap().state {
                        ClaimState::Pending { lease_left } => lease_left,
                        other => panic!("{other:?}"),
                    }
                };
                while left() < lease {
                    assert!(std::time::Instant::now() < deadline, "nobody renews the lease");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        "done"
    });
    assert_eq!(send(&app, post("k", "")).await.body, "done");
}

#[tokio::test]
async fn hooks_see_every_event_in_order() {
    let recorded = RecordedEvents::default();
    let app = app(memory().0, recorded.config(), || async { "ok" });
    send(&app, post("k", "")).await;
    send(&app, post("k", "")).await;
    send(&app, post("k", "other")).await;
    send(&app, post("", "")).await;
    let events = [Event::Started, Event::Kept, Event::Replayed, Event::Mismatch, Event::Refused];
    assert_eq!(recorded.events(), events);
    let outcomes: Vec<_> = recorded.answered().into_iter().map(|(outcome, _)| outcome).collect();
    assert_eq!(outcomes, [Event::Started, Event::Replayed, Event::Mismatch, Event::Refused]);
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_runs_and_refuses_new_ones() {
    let (gate, runs) = (HandlerGate::default(), Runs::default());
    let (inside, counted) = (gate.clone(), runs.clone());
    let layer = IdempotencyLayer::new(memory().0);
    let handler = move || async move {
        inside.pass().await;
        counted.add().to_string()
    };
    let app = Router::new().fallback(handler).layer(layer.clone());
    let first = sending(&app, "k", "");
    gate.reached().await;
    // The run outlives its client.
    first.abort();
    let waiter = sending(&app, "k", "");
    tokio::task::yield_now().await;
    assert_eq!(layer.running(), 1);

    let drained = layer.drain();
    let refused = send(&app, post("new", "")).await;
    refused.assert_problem(503, "shutting-down");
    assert_eq!(refused.problem()["retryable"], true);
    let mut drained = pin!(drained);
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut drained).await.is_err());
    gate.release_one();
    drained.await;
    assert_eq!((layer.running(), runs.count()), (0, 1));
    // A request that was already waiting gets the response.
    assert_eq!(waiter.await.unwrap().body, "1");
    layer.drain().await;
}

#[tokio::test(start_paused = true)]
async fn drain_waits_until_the_response_is_stored() {
    let store = FaultyStore::new(memory().0);
    let failing = store.clone();
    let layer = IdempotencyLayer::new(Arc::new(store.clone()));
    let handler = move || async move {
        failing.always(Some(Fault::LostQuestion));
        "done"
    };
    let app = Router::new().fallback(handler).layer(layer.clone());
    assert_eq!(send(&app, post("k", "")).await.body, "done");
    let mut drained = pin!(layer.drain());
    assert!(tokio::time::timeout(Duration::from_secs(20), &mut drained).await.is_err());
    store.always(None);
    drained.await;
}

#[tokio::test(start_paused = true)]
async fn drain_gives_back_claims_granted_late() {
    let (store, _) = memory();
    let faulty = FaultyStore::new(store.clone());
    let runs = Runs::default();
    let counted = runs.clone();
    let layer = IdempotencyLayer::new(Arc::new(faulty.clone())).with_config(without_wait());
    let handler = move || async move { counted.add().to_string() };
    let app = Router::new().fallback(handler).layer(layer.clone());
    faulty.plan([Fault::Stall(Duration::from_millis(50))]);
    let request = sending(&app, "k", "");
    tokio::time::sleep(Duration::from_millis(5)).await;
    layer.drain().await;
    assert_eq!(request.await.unwrap().code(), "shutting-down");
    // Another server can run the request.
    let other = crate::common::app(store, IdempotencyConfig::new(), || async { "elsewhere" });
    assert_eq!(send(&other, post("k", "")).await.body, "elsewhere");
    assert_eq!(runs.count(), 0);
}
