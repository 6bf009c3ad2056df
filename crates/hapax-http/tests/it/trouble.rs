//! The store fails, the service fails, the client goes away.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Door, Heard, Runs, app, impatient, keyed, memory, post, send};
use async_trait::async_trait;
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use hapax_conformance::{Fault, Faulty};
use hapax_core::lock::OnStoreError;
use hapax_core::{
    ClaimRequest, ClaimView, Claimed, Claims, GiveBack, Key, ManualClock, OnUnknown, Step,
    StoreError, Token,
};
use hapax_http::{IdempotencyConfig, IdempotencyEvent, IdempotencyLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

fn faulty() -> (Faulty, Arc<ManualClock>) {
    let (store, clock) = memory();
    (Faulty::new(store), clock)
}

/// An app that says which attempt it is and counts; the store fails from the moment it runs.
fn fails_from_the_run_on(
    store: &Faulty,
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
async fn a_store_that_is_down_is_503_and_nothing_runs() {
    let (store, _) = faulty();
    let heard = Heard::default();
    let runs = Runs::default();
    let counted = runs.clone();
    let app =
        app(Arc::new(store.clone()), heard.config(), || async move { counted.add().to_string() });
    store.always(Some(Fault::LostQuestion));
    let answer = send(&app, post("k", "")).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "store-unavailable"));
    assert_eq!(answer.problem()["retryable"], true);
    assert_eq!((runs.count(), heard.events()), (0, vec![IdempotencyEvent::StoreError]));
    store.always(None);
    assert_eq!(send(&app, post("k", "")).await.body, "1");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_503_within_the_limit() {
    let (store, _) = faulty();
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(Arc::new(store.clone()), IdempotencyConfig::new(), || async move {
        counted.add().to_string()
    });
    store.plan([Fault::NoAnswer]);
    let since = tokio::time::Instant::now();
    assert_eq!(send(&app, post("k", "")).await.status, 503);
    assert_eq!(since.elapsed(), *IdempotencyConfig::new().store_timeout());
    // The claim had been granted, and nobody heard: it was given back.
    assert_eq!(send(&app, post("k", "")).await.body, "1");
}

#[tokio::test]
async fn an_open_policy_lets_it_pass_and_says_so() {
    let (store, _) = faulty();
    let heard = Heard::default();
    let config = heard.config().with_on_store_error(OnStoreError::Open);
    let app = app(Arc::new(store.clone()), config, |headers: HeaderMap| async move {
        format!("{}", headers.contains_key("hapax-fence"))
    });
    store.always(Some(Fault::LostQuestion));
    let answer = send(&app, post("k", "")).await;
    assert_eq!(answer.header("hapax-unprotected"), Some("store-unavailable"));
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"false"[..]));
    assert_eq!(heard.events(), [IdempotencyEvent::Unprotected]);
    store.always(None);
    assert_eq!(send(&app, post("protected", "")).await.header("hapax-unprotected"), None);
}

#[tokio::test]
async fn an_open_policy_never_runs_what_is_known_to_run_already() {
    let (store, _) = faulty();
    let config = IdempotencyConfig::new().with_on_store_error(OnStoreError::Open);
    let running = keyed(&config, "k", "");
    store.claim(running.key(), running.claim()).await.unwrap();
    let app = app(Arc::new(store.clone()), config, || async { "ran" });
    store.plan([Fault::None]);
    store.always(Some(Fault::LostQuestion));
    assert_eq!(send(&app, post("k", "")).await.code(), "store-unavailable");
}

/// A store that holds what nobody can read.
struct Corrupt;

#[async_trait]
impl Claims for Corrupt {
    async fn claim(&self, _: &Key, _: &ClaimRequest) -> Result<Claimed, StoreError> {
        Err(StoreError::Corrupt { reason: "damaged".into() })
    }
    async fn extend(&self, _: &Key, _: &Token, _: Duration) -> Result<Step, StoreError> {
        unreachable!()
    }
    async fn settle(&self, _: &Key, _: &Token, _: Bytes) -> Result<Step, StoreError> {
        unreachable!()
    }
    async fn give_back(&self, _: &Key, _: &Token, _: GiveBack) -> Result<Step, StoreError> {
        unreachable!()
    }
    async fn look(&self, _: &Key) -> Result<Option<ClaimView>, StoreError> {
        unreachable!()
    }
}

#[tokio::test]
async fn what_is_stored_but_cannot_be_read_is_no_reason_to_run() {
    let config = IdempotencyConfig::new().with_on_store_error(OnStoreError::Open);
    let over_damage = app(Arc::new(Corrupt), config.clone(), || async { "ran" });
    assert_eq!(send(&over_damage, post("k", "")).await.code(), "internal");
    // The same where the row is fine and the answer in it is not.
    let (store, _) = memory();
    let row = keyed(&config, "k", "");
    let Claimed::Granted { ticket, .. } = store.claim(row.key(), row.claim()).await.unwrap() else {
        panic!()
    };
    let _ = store.settle(row.key(), &ticket.token, "no answer".into()).await.unwrap();
    let damaged = send(&app(store, config, || async { "ran" }), post("k", "")).await;
    assert_eq!((damaged.status.as_u16(), damaged.code().as_str()), (500, "internal"));
}

#[tokio::test]
async fn lost_answers_of_the_store_change_nothing() {
    let (store, _) = faulty();
    let runs = Runs::default();
    let counted = runs.clone();
    let app =
        app(Arc::new(store.clone()), IdempotencyConfig::new(), |headers: HeaderMap| async move {
            counted.add();
            headers["hapax-attempt"].to_str().unwrap().to_owned()
        });
    // The claim twice, the settle twice.
    store.plan([Fault::LostAnswer, Fault::None, Fault::LostAnswer, Fault::None]);
    assert_eq!(send(&app, post("k", "")).await.body, "1");
    assert!(send(&app, post("k", "")).await.is_replay());
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_could_not_be_stored_is_given_and_stored_later() {
    let (store, clock) = faulty();
    let heard = Heard::default();
    let config = heard.config().with_wait(Duration::ZERO);
    let (app, runs) = fails_from_the_run_on(&store, config.clone(), StatusCode::OK);
    assert_eq!(send(&app, post("k", "")).await.body, "1");
    assert_eq!(heard.events(), [IdempotencyEvent::Started, IdempotencyEvent::StoreError]);
    // The store is away for longer than the lease.
    tokio::time::sleep(*config.lease() * 2).await;
    clock.advance(*config.lease() * 2);
    assert_eq!(heard.count(IdempotencyEvent::Kept), 0);
    store.always(None);
    assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
    heard.until(IdempotencyEvent::Kept).await;
    let again = send(&app, post("k", "")).await;
    assert_eq!((again.is_replay(), &again.body[..], runs.count()), (true, &b"1"[..], 1));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_at_the_settle_does_not_keep_the_answer_from_its_client() {
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
async fn a_key_that_could_not_be_given_back_is_given_back_later() {
    let (store, _) = faulty();
    let heard = Heard::default();
    let config = heard.config().with_wait(Duration::ZERO);
    let (app, _) = fails_from_the_run_on(&store, config, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(send(&app, post("k", "")).await.status, 500);
    store.always(None);
    assert_eq!(send(&app, post("k", "")).await.code(), "in-progress");
    heard.until(IdempotencyEvent::GivenBack).await;
    assert_eq!(send(&app, post("k", "")).await.body, "2");
}

#[tokio::test]
async fn a_handler_that_panics_leaves_the_outcome_unknown_at_once() {
    let (store, clock) = memory();
    let heard = Heard::default();
    let config = heard.config().with_wait(Duration::ZERO);
    let runs = Runs::default();
    let counted = runs.clone();
    let app = app(store, config, || async move {
        counted.add();
        panic!("in the middle of the work");
        #[allow(unreachable_code)]
        ""
    });
    let answer = send(&app, post("k", "")).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "outcome-unknown"));
    heard.until(IdempotencyEvent::Unknown).await;
    tokio::task::yield_now().await;
    clock.advance(Duration::from_millis(1));
    assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_service_that_fails_leaves_the_outcome_unknown() {
    let (store, clock) = memory();
    let layer = IdempotencyLayer::new(store).with_config(impatient());
    let service = layer.layer(service_fn(|_: http::Request<_>| async {
        Err::<http::Response<axum::body::Body>, _>(std::io::Error::other("time limit"))
    }));
    let error = service.clone().oneshot(post("k", "")).await.unwrap_err();
    assert_eq!(error.to_string(), "time limit");
    clock.advance(Duration::from_millis(1));
    assert_eq!(service.oneshot(post("k", "")).await.unwrap().status(), 409);
}

#[tokio::test]
async fn a_service_that_is_not_ready_for_a_waiter_gives_the_key_back() {
    #[derive(Clone)]
    struct Ready(bool);
    impl Service<http::Request<hapax_http::RequestBody<axum::body::Body>>> for Ready {
        type Response = http::Response<axum::body::Body>;
        type Error = &'static str;
        type Future = std::future::Ready<Result<Self::Response, Self::Error>>;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Self::Error>> {
            // The first time it is.
            let ready = std::mem::take(&mut self.0);
            std::task::Poll::Ready(if ready { Ok(()) } else { Err("full") })
        }
        fn call(
            &mut self,
            _: http::Request<hapax_http::RequestBody<axum::body::Body>>,
        ) -> Self::Future {
            panic!("called without a place")
        }
    }
    let (store, _) = memory();
    let config = IdempotencyConfig::new().with_wait(Duration::from_secs(60));
    let first = keyed(&config, "k", "");
    let Claimed::Granted { ticket, .. } = store.claim(first.key(), first.claim()).await.unwrap()
    else {
        panic!()
    };
    let layer = IdempotencyLayer::new(store.clone()).with_config(config);
    let waiter = tokio::spawn(layer.layer(Ready(true)).oneshot(post("k", "")));
    tokio::task::yield_now().await;
    let _ = store.give_back(first.key(), &ticket.token, GiveBack::Keep).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap_err(), "full");
    let view = store.look(first.key()).await.unwrap().unwrap();
    assert!(matches!(view.state, hapax_core::claims::ClaimState::Failed { .. }), "{view:?}");
}

#[tokio::test]
async fn when_the_client_goes_away_the_handler_runs_to_its_end_and_its_answer_is_stored() {
    let (door, runs) = (Door::default(), Runs::default());
    let (inside, counted) = (door.clone(), runs.clone());
    let app = app(memory().0, IdempotencyConfig::new(), || async move {
        inside.pass().await;
        counted.add().to_string()
    });
    let request = app.clone().oneshot(post("k", ""));
    tokio::select! {
        _ = request => panic!("it waits at the door"),
        () = door.knocked() => {}
    }
    door.let_one_in();
    let again = send(&app, post("k", "")).await;
    assert_eq!((&again.body[..], again.is_replay(), runs.count()), (&b"1"[..], true, 1));
}

#[tokio::test(start_paused = true)]
async fn when_the_client_goes_away_before_the_claim_is_heard_nothing_runs_and_the_key_is_free() {
    let (store, _) = faulty();
    let runs = Runs::default();
    let counted = runs.clone();
    let app =
        app(Arc::new(store.clone()), impatient(), || async move { counted.add().to_string() });
    store.plan([Fault::NoAnswer]);
    let request = app.clone().oneshot(post("k", ""));
    assert!(tokio::time::timeout(Duration::from_millis(10), request).await.is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&app, post("k", "")).await.body, "1");
}

#[tokio::test]
async fn a_late_owner_is_told_in_progress_while_the_winner_still_runs() {
    let (store, clock) = memory();
    let config = impatient().with_on_unknown(OnUnknown::TakeOver);
    let heard = Heard::default();
    let config = config.with_hooks(heard.clone());
    let door = Door::default();
    let inside = door.clone();
    let app = app(store.clone(), config.clone(), || async move {
        inside.pass().await;
        "late"
    });
    let late = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("k", "")).await }
    });
    door.knocked().await;
    clock.advance(*config.lease());
    let winner = keyed(&config, "k", "");
    let claimed = store.claim(winner.key(), winner.claim()).await.unwrap();
    assert!(matches!(claimed, Claimed::Granted { attempt: 2, .. }));
    door.let_one_in();
    let late = late.await.unwrap();
    assert_eq!((late.status.as_u16(), late.code().as_str()), (409, "in-progress"));
    assert_eq!(heard.count(IdempotencyEvent::Lost), 1);
    // And that the outcome is unknown where the winner went away as well.
    clock.advance(*config.lease());
    let refusing = config.with_on_unknown(OnUnknown::Refuse);
    let retry = send(&crate::common::app(store, refusing, || async { "ran" }), post("k", "")).await;
    assert_eq!(retry.code(), "outcome-unknown");
}
