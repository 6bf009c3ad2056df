//! The end of a response is sent after the settle, and never after a cut.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::fed::{answers_once, data, fed, fed_app, head};
use crate::common::{RecordedEvents, memory, post, send, try_send, without_wait};
use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use hapax_conformance::{Fault, FaultyStore};
use hapax_core::OnUnknown;
use hapax_http::{IdempotencyConfig, IdempotencyEvent as Event};
use http_body::Frame;
use http_body_util::BodyExt;
use tower::ServiceExt;

/// A store that takes a minute to settle the first claim.
fn slow_to_settle() -> Arc<FaultyStore> {
    let store = FaultyStore::new(memory().0);
    store.plan([Fault::None, Fault::Stall(Duration::from_secs(60))]);
    Arc::new(store)
}

fn patient() -> IdempotencyConfig {
    IdempotencyConfig::new().with_store_timeout(Duration::from_secs(3600))
}

/// Checks that the claim is being settled, and that no frame comes meanwhile.
async fn assert_silent_during_settle(store: &FaultyStore, body: &mut Body) {
    assert!(tokio::time::timeout(Duration::from_secs(1), body.frame()).await.is_err());
    assert_eq!(store.calls(), 2, "a claim and a settle");
}

#[tokio::test(start_paused = true)]
async fn settle_precedes_end_of_response_without_length() {
    let store = slow_to_settle();
    let (tap, app, _) = fed_app(store.clone(), patient(), None);
    let mut answer = head(&app, "k").await;
    tap.send("all of it");
    assert_eq!(data(&mut answer).await, "all of it");
    drop(tap);
    assert_silent_during_settle(&store, &mut answer).await;
    assert!(answer.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn settle_precedes_last_byte_of_response_with_length() {
    for written_by_hand in [false, true] {
        let store = slow_to_settle();
        let (tap, body) = fed(if written_by_hand { None } else { Some(6) });
        let mut response = Response::new(Body::new(body));
        if written_by_hand {
            response.headers_mut().insert("content-length", 6.into());
        }
        let (app, _) = answers_once(store.clone(), patient(), response);
        let mut answer = head(&app, "k").await;
        tap.send("abc");
        assert_eq!(data(&mut answer).await, "abc");
        tap.send("def");
        assert_silent_during_settle(&store, &mut answer).await;
        // The sender is still open: the length marks the end.
        assert_eq!(data(&mut answer).await, "def");
        assert!(answer.frame().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn settle_precedes_head_of_ready_response() {
    let (ready, body) = fed(Some(3));
    ready.send("abc");
    for response in [
        StatusCode::NO_CONTENT.into_response(),
        "abc".into_response(),
        Response::new(Body::new(body)),
    ] {
        let store = slow_to_settle();
        let (app, _) = answers_once(store.clone(), patient(), response);
        let mut first = pin!(app.oneshot(post("k", "")));
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut first).await.is_err());
        assert_eq!(store.calls(), 2, "a claim and a settle");
        assert!(first.await.unwrap().status().is_success());
    }
}

#[tokio::test(start_paused = true)]
async fn settle_precedes_trailers_which_are_replayed() {
    let store = slow_to_settle();
    let (tap, app, _) = fed_app(store.clone(), patient(), None);
    let mut answer = head(&app, "k").await;
    tap.send("message");
    assert_eq!(data(&mut answer).await, "message");
    tap.trailers("grpc-status", "0");
    assert_silent_during_settle(&store, &mut answer).await;
    let trailers = answer.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    let again = send(&app, post("k", "")).await;
    assert_eq!((&again.body[..], again.trailers), (&b"message"[..], Some(trailers)));
    assert_eq!(again.headers["trailer"], "grpc-status");
    assert!(!again.headers.contains_key("trailer:grpc-status"));
}

#[tokio::test]
async fn cut_response_above_max_body_is_unknown() {
    for length in [None, Some(8)] {
        let (store, clock) = memory();
        let config = without_wait().with_max_body(4);
        let (tap, app, _) = fed_app(store, config, length);
        let mut answer = head(&app, "k").await;
        tap.send("12345");
        assert_eq!(data(&mut answer).await, "12345");
        tap.break_off();
        assert!(answer.frame().await.unwrap().is_err());
        clock.advance(Duration::from_millis(1));
        assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
    }
}

#[tokio::test(start_paused = true)]
async fn settle_precedes_last_byte_above_max_body() {
    let store = slow_to_settle();
    let config = patient().with_max_body(4);
    let (tap, app, _) = fed_app(store.clone(), config, Some(8));
    let mut answer = head(&app, "k").await;
    tap.send("12345");
    assert_eq!(data(&mut answer).await, "12345");
    tap.send("678");
    assert_silent_during_settle(&store, &mut answer).await;
    assert_eq!(data(&mut answer).await, "678");
}

#[tokio::test]
async fn cut_response_is_unknown() {
    for there_at_once in [true, false] {
        let (store, clock) = memory();
        let (tap, app, runs) = fed_app(store, without_wait(), None);
        if there_at_once {
            tap.send("half");
            tap.break_off();
            let answer = send(&app, post("k", "")).await;
            answer.assert_problem(409, "outcome-unknown");
        } else {
            let mut answer = head(&app, "k").await;
            tap.send("half");
            assert_eq!(data(&mut answer).await, "half");
            tap.break_off();
            assert!(answer.frame().await.unwrap().is_err());
        }
        clock.advance(Duration::from_millis(1));
        assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
        assert_eq!(runs.count(), 1);
    }
}

#[tokio::test]
async fn response_with_wrong_length_is_unknown() {
    for (said, sent) in [(6, "abc"), (2, "abc")] {
        for at_once in [true, false] {
            let (store, clock) = memory();
            let (tap, app, _) = fed_app(store, without_wait(), Some(said));
            let first = if at_once {
                tap.send(sent);
                drop(tap);
                send(&app, post("k", "")).await.status.is_success()
            } else {
                let answer = head(&app, "k").await;
                tap.send(sent);
                drop(tap);
                answer.collect().await.is_ok()
            };
            assert!(!first);
            clock.advance(Duration::from_millis(1));
            assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
        }
    }
}

struct Panics;

impl http_body::Body for Panics {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("in the middle of the answer")
    }
}

#[tokio::test]
async fn panicking_body_ends_with_an_error() {
    let recorded = RecordedEvents::default();
    let first = Body::from_stream(futures_util::stream::once(async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok::<_, Infallible>(Bytes::from("half"))
    }));
    // Half of the body, then the panic.
    let body = Body::new(Chain(first, Panics));
    let config = recorded.config().with_wait(Duration::ZERO);
    let (store, clock) = memory();
    let (app, _) = answers_once(store, config, Response::new(body));
    assert!(try_send(&app, post("k", "")).await.is_err());
    recorded.until(Event::Unknown).await;
    // The event is recorded before the claim is abandoned.
    tokio::task::yield_now().await;
    clock.advance(Duration::from_millis(1));
    assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
}

/// A body that is followed by another one.
struct Chain(Body, Panics);

impl http_body::Body for Chain {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match Pin::new(&mut self.0).poll_frame(cx) {
            Poll::Ready(None) => Pin::new(&mut self.1).poll_frame(cx).map_err(axum::Error::new),
            other => other,
        }
    }
}

#[tokio::test]
async fn late_streamed_response_is_cut_when_taken_over() {
    let (store, clock) = memory();
    let config = without_wait().with_on_unknown(OnUnknown::TakeOver);
    let (tap, app, runs) = fed_app(store, config.clone(), None);
    let mut late = head(&app, "k").await;
    tap.send("late");
    assert_eq!(data(&mut late).await, "late");
    clock.advance(*config.lease());
    assert_eq!(send(&app, post("k", "")).await.body, "ran again");
    drop(tap);
    assert!(late.frame().await.unwrap().is_err());
    assert_eq!(send(&app, post("k", "")).await.body, "ran again");
    assert_eq!(runs.count(), 2);
}
