//! Failures of the store and the service, and clients that disconnect.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::{
    RecordedEvents, Runs, app, claim_elsewhere, counting_app, gated_app, keyed, memory, post, send,
    sending, without_wait,
};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use hapax_conformance::{Fault, FaultyStore};
use hapax_core::lock::OnStoreError;
use hapax_core::{Claimed, Claims, GiveBack, ManualClock, OnUnknown};
use hapax_http::{IdempotencyConfig, IdempotencyEvent as Event, IdempotencyLayer, RequestBody};
use tower::{Layer, Service, ServiceExt, service_fn};

fn faulty() -> (FaultyStore, Arc<ManualClock>) {
    let (store, clock) = memory();
    (FaultyStore::new(store), clock)
}

/// An app that responds with its attempt; the store fails as soon as the handler runs.
fn with_store_failing_during_run(
    store: &FaultyStore,
    config: IdempotencyConfig,
    status: StatusCode,
) -> (Router, Runs) {
    let (runs, store) = (Runs::default(), store.clone());
    let (counted, failing) = (runs.clone(), store.clone());
    let app = app(Arc::new(store), config, move |headers: HeaderMap| async move {
        if counted.add() == 1 {
            failing.always(Some(Fault::LostQuestion));
        }
        (status, headers["hapax-attempt"].to_str().unwrap().to_owned())
    });
    (app, runs)
}

#[tokio::test]
async fn store_down_is_503_and_runs_nothing() {
    let (store, _) = faulty();
    let recorded = RecordedEvents::default();
    let (app, runs) = counting_app(Arc::new(store.clone()), recorded.config());
    store.always(Some(Fault::LostQuestion));
    let answer = send(&app, post("k", "")).await;
    answer.assert_problem(503, "store-unavailable");
    assert_eq!(answer.problem()["retryable"], true);
    assert_eq!((runs.count(), recorded.events()), (0, vec![Event::StoreError]));
    store.always(None);
    assert_eq!(send(&app, post("k", "")).await.body, "1");
}

#[tokio::test(start_paused = true)]
async fn store_hanging_is_503_within_store_timeout() {
    let (store, _) = faulty();
    let (app, _) = counting_app(Arc::new(store.clone()), IdempotencyConfig::new());
    store.plan([Fault::NoAnswer]);
    let since = tokio::time::Instant::now();
    assert_eq!(send(&app, post("k", "")).await.status, 503);
    assert_eq!(since.elapsed(), *IdempotencyConfig::new().store_timeout());
    // The claim was granted, its answer was lost, and it was given back.
    assert_eq!(send(&app, post("k", "")).await.body, "1");
}

#[tokio::test]
async fn open_policy_runs_unprotected_and_marks_it() {
    let (store, _) = faulty();
    let recorded = RecordedEvents::default();
    let config = recorded.config().with_on_store_error(OnStoreError::Open);
    let app = app(Arc::new(store.clone()), config, |headers: HeaderMap| async move {
        format!("{}", headers.contains_key("hapax-fence"))
    });
    store.always(Some(Fault::LostQuestion));
    let answer = send(&app, post("k", "")).await;
    assert_eq!(answer.header("hapax-unprotected"), Some("store-unavailable"));
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"false"[..]));
    assert_eq!(recorded.events(), [Event::Unprotected]);
    store.always(None);
    assert_eq!(send(&app, post("protected", "")).await.header("hapax-unprotected"), None);
}

#[tokio::test]
async fn open_policy_never_runs_a_key_in_progress() {
    let (store, _) = faulty();
    let config = IdempotencyConfig::new().with_on_store_error(OnStoreError::Open);
    claim_elsewhere(&store, &config, "k").await;
    let app = app(Arc::new(store.clone()), config, || async { "ran" });
    store.plan([Fault::None]);
    store.always(Some(Fault::LostQuestion));
    assert_eq!(send(&app, post("k", "")).await.code(), "store-unavailable");
}

#[tokio::test]
async fn open_policy_never_runs_over_a_corrupt_value() {
    let config = IdempotencyConfig::new().with_on_store_error(OnStoreError::Open);
    let (store, _) = faulty();
    store.always(Some(Fault::Corrupt));
    let over_damage = app(Arc::new(store), config.clone(), || async { "ran" });
    assert_eq!(send(&over_damage, post("k", "")).await.code(), "internal");
    // The same where the row is intact and the response in it is not.
    let (store, _) = memory();
    let (key, ticket) = claim_elsewhere(&*store, &config, "k").await;
    let _ = store.settle(&key, &ticket.token, "no answer".into()).await.unwrap();
    let damaged = send(&app(store, config, || async { "ran" }), post("k", "")).await;
    damaged.assert_problem(500, "internal");
}

#[tokio::test]
async fn store_answers_lost_change_nothing() {
    let (store, _) = faulty();
    let runs = Runs::default();
    let counted = runs.clone();
    let app =
        app(Arc::new(store.clone()), IdempotencyConfig::new(), |headers: HeaderMap| async move {
            counted.add();
            headers["hapax-attempt"].to_str().unwrap().to_owned()
        });
    // The claim and the settle are each asked twice.
    store.plan([Fault::LostAnswer, Fault::None, Fault::LostAnswer, Fault::None]);
    assert_eq!(send(&app, post("k", "")).await.body, "1");
    assert!(send(&app, post("k", "")).await.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn settle_failing_is_retried_in_background() {
    let (store, clock) = faulty();
    let recorded = RecordedEvents::default();
    let config = recorded.config().with_wait(Duration::ZERO);
    let (app, runs) = with_store_failing_during_run(&store, config.clone(), StatusCode::OK);
    assert_eq!(send(&app, post("k", "")).await.body, "1");
    assert_eq!(recorded.events(), [Event::Started, Event::StoreError]);
    // The store is down for longer than the lease.
    tokio::time::sleep(*config.lease() * 2).await;
    clock.advance(*config.lease() * 2);
    assert_eq!(recorded.count(Event::Kept), 0);
    store.always(None);
    assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
    recorded.until(Event::Kept).await;
    let again = send(&app, post("k", "")).await;
    assert_eq!((again.is_replay(), &again.body[..], runs.count()), (true, &b"1"[..], 1));
}

#[tokio::test(start_paused = true)]
async fn settle_hanging_does_not_hold_back_the_response() {
    let (store, _) = faulty();
    let failing = store.clone();
    let app = app(Arc::new(store.clone()), IdempotencyConfig::new(), || async move {
        failing.plan([Fault::NoAnswer]);
        "done"
    });
    let since = tokio::time::Instant::now();
    assert_eq!(send(&app, post("k", "")).await.body, "done");
    assert_eq!(since.elapsed(), *IdempotencyConfig::new().store_timeout());
    assert!(send(&app, post("k", "")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn give_back_failing_is_retried_in_background() {
    let (store, _) = faulty();
    let recorded = RecordedEvents::default();
    let config = recorded.config().with_wait(Duration::ZERO);
    let (app, _) = with_store_failing_during_run(&store, config, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(send(&app, post("k", "")).await.status, 500);
    store.always(None);
    assert_eq!(send(&app, post("k", "")).await.code(), "in-progress");
    recorded.until(Event::GivenBack).await;
    assert_eq!(send(&app, post("k", "")).await.body, "2");
}

#[tokio::test]
async fn panicking_handler_is_unknown_at_once() {
    let (store, clock) = memory();
    let recorded = RecordedEvents::default();
    let config = recorded.config().with_wait(Duration::ZERO);
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(store, config, || async move {
        counted.add();
        panic!("in the middle of the work");
        #[allow(unreachable_code)]
        ""
    });
    let answer = send(&app, post("k", "")).await;
    answer.assert_problem(409, "outcome-unknown");
    recorded.until(Event::Unknown).await;
    tokio::task::yield_now().await;
    clock.advance(Duration::from_millis(1));
    assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn failing_service_is_unknown() {
    let (store, clock) = memory();
    let layer = IdempotencyLayer::new(store).with_config(without_wait());
    let service = layer.layer(service_fn(|_: Request<_>| async {
        Err::<Response<Body>, _>(std::io::Error::other("time limit"))
    }));
    let error = service.clone().oneshot(post("k", "")).await.unwrap_err();
    assert_eq!(error.to_string(), "time limit");
    clock.advance(Duration::from_millis(1));
    assert_eq!(service.oneshot(post("k", "")).await.unwrap().status(), 409);
}

#[tokio::test]
async fn service_not_ready_for_a_waiter_frees_the_key() {
    #[derive(Clone)]
    struct Ready(bool);
    impl Service<Request<RequestBody<Body>>> for Ready {
        type Response = Response<Body>;
        type Error = &'static str;
        type Future = std::future::Ready<Result<Self::Response, Self::Error>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            // Ready only the first time.
            let ready = std::mem::take(&mut self.0);
            Poll::Ready(if ready { Ok(()) } else { Err("full") })
        }
        fn call(&mut self, _: Request<RequestBody<Body>>) -> Self::Future {
            panic!("called without a place")
        }
    }
    let (store, _) = memory();
    let config = IdempotencyConfig::new().with_wait(Duration::from_secs(60));
    let (key, ticket) = claim_elsewhere(&*store, &config, "k").await;
    let layer = IdempotencyLayer::new(store.clone()).with_config(config);
    let waiter = tokio::spawn(layer.layer(Ready(true)).oneshot(post("k", "")));
    tokio::task::yield_now().await;
    let _ = store.give_back(&key, &ticket.token, GiveBack::Keep).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap_err(), "full");
    let view = store.look(&key).await.unwrap().unwrap();
    assert!(matches!(view.state, hapax_core::claims::ClaimState::Failed { .. }), "{view:?}");
}

#[tokio::test]
async fn handler_finishes_and_is_stored_after_disconnect() {
    let (app, gate, runs) = gated_app(memory().0, IdempotencyConfig::new(), StatusCode::OK);
    let request = app.clone().oneshot(post("k", ""));
    tokio::select! {
        _ = request => panic!("it waits at the gate"),
        () = gate.reached() => {}
    }
    gate.release_one();
    let again = send(&app, post("k", "")).await;
    assert_eq!((&again.body[..], again.is_replay(), runs.count()), (&b"1"[..], true, 1));
}

#[test]
fn handler_finishes_if_its_future_is_dropped_outside_the_runtime() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (app, gate, runs) = gated_app(memory().0, IdempotencyConfig::new(), StatusCode::OK);
    let mut request = Box::pin(app.clone().oneshot(post("k", "")));
    runtime.block_on(async {
        tokio::select! {
            _ = &mut request => panic!("it waits at the gate"),
            () = gate.reached() => {}
        }
    });
    drop(request);
    gate.release_one();
    let again = runtime.block_on(send(&app, post("k", "")));
    assert_eq!((&again.body[..], again.is_replay(), runs.count()), (&b"1"[..], true, 1));
}

#[tokio::test(start_paused = true)]
async fn disconnect_during_claim_frees_the_key() {
    let (store, _) = faulty();
    let (app, runs) = counting_app(Arc::new(store.clone()), without_wait());
    store.plan([Fault::NoAnswer]);
    let request = app.clone().oneshot(post("k", ""));
    assert!(tokio::time::timeout(Duration::from_millis(10), request).await.is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&app, post("k", "")).await.body, "1");
}

#[tokio::test]
async fn late_owner_gets_in_progress_while_the_winner_runs() {
    let (store, clock) = memory();
    let recorded = RecordedEvents::default();
    let config = without_wait().with_on_unknown(OnUnknown::TakeOver).with_hooks(recorded.clone());
    let (app, gate, _) = gated_app(store.clone(), config.clone(), StatusCode::OK);
    let late = sending(&app, "k", "");
    gate.reached().await;
    clock.advance(*config.lease());
    let winner = keyed(&config, "k", "");
    let claimed = store.claim(winner.key(), winner.claim()).await.unwrap();
    assert!(matches!(claimed, Claimed::Granted { attempt: 2, .. }));
    gate.release_one();
    let late = late.await.unwrap();
    late.assert_problem(409, "in-progress");
    assert_eq!(recorded.count(Event::Lost), 1);
    // The outcome is unknown if the winner crashed as well.
    clock.advance(*config.lease());
    let refusing = config.with_on_unknown(OnUnknown::Refuse);
    let retry = send(&crate::common::app(store, refusing, || async { "ran" }), post("k", "")).await;
    assert_eq!(retry.code(), "outcome-unknown");
}
