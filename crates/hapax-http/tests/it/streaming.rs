//! Streamed responses, large responses and event streams.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::common::fed::{Fed, Tap, answers_once, data, fed, fed_app, head};
use crate::common::{FullResponse, RecordedEvents, Runs, keyed, memory, post, send, without_wait};
use axum::Router;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use hapax_core::memory::MemoryStore;
use hapax_core::{Claims, ManualClock};
use hapax_http::{IdempotencyConfig, IdempotencyEvent as Event};
use http_body::Frame;
use http_body_util::BodyExt;
use tower::ServiceExt;

#[tokio::test]
async fn response_streams_live_and_is_replayed_whole() {
    let (tap, app, runs) = fed_app(memory().0, IdempotencyConfig::new(), None);
    let mut answer = head(&app, "k").await;
    for piece in ["one, ", "two, ", "three"] {
        tap.send(piece);
        assert_eq!(data(&mut answer).await, piece);
    }
    drop(tap);
    assert!(answer.frame().await.is_none());
    assert_eq!(send(&app, post("k", "")).await.body, "one, two, three");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn trailers_ready_at_once_are_replayed() {
    let (tap, app, _) = fed_app(memory().0, IdempotencyConfig::new(), None);
    tap.send("message");
    tap.trailers("grpc-status", "0");
    let first = send(&app, post("k", "")).await;
    let again = send(&app, post("k", "")).await;
    assert_eq!((first.body, first.trailers), (again.body, again.trailers.clone()));
    assert_eq!(again.trailers.unwrap()["grpc-status"], "0");
}

#[tokio::test(start_paused = true)]
async fn response_above_max_body_arrives_and_leaves_a_tombstone() {
    // One piece with a length; several ready pieces; one ready piece; pieces that come later.
    let whole = Body::from("12345678");
    let pieces = |pieces: &[&'static str]| {
        let (tap, body) = fed(None);
        pieces.iter().for_each(|piece| tap.send(piece));
        Body::new(body)
    };
    let (tap, slow) = fed(None);
    tap.send("1234");
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        tap.send("56");
        tap.send("78");
    });
    let bodies = [
        whole,
        pieces(&["1234", "5678"]),
        pieces(&["12345678"]),
        pieces(&["12345", "678"]),
        Body::new(slow),
    ];
    for body in bodies {
        let recorded = RecordedEvents::default();
        let config = recorded.config().with_max_body(4);
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::CREATED;
        let (app, runs) = answers_once(memory().0, config, response);
        assert_eq!(send(&app, post("k", "")).await.body, "12345678");
        let again = send(&app, post("k", "")).await;
        again.assert_problem(409, "response-not-kept");
        assert_eq!(again.problem()["original_status"], 201);
        assert_eq!(again.problem()["retryable"], false);
        assert_eq!(runs.count(), 1);
        assert_eq!((recorded.count(Event::NotKept), recorded.count(Event::Kept)), (1, 0));
    }
}

#[tokio::test]
async fn response_of_exactly_max_body_is_kept() {
    for body in [Body::from("1234"), {
        let (tap, body) = fed(None);
        tap.send("12");
        tap.send("34");
        Body::new(body)
    }] {
        let config = IdempotencyConfig::new().with_max_body(4);
        let (app, _) = answers_once(memory().0, config, Response::new(body));
        assert_eq!(send(&app, post("k", "")).await.body, "1234");
        assert_eq!(send(&app, post("k", "")).await.body, "1234");
    }
}

#[tokio::test]
async fn response_frame_larger_than_the_channel_arrives() {
    let config = IdempotencyConfig::new().with_max_body(1024);
    let (tap, app, _) = fed_app(memory().0, config, None);
    let mut answer = head(&app, "k").await;
    let large = Bytes::from(vec![b'x'; 1024 * 1024]);
    for _ in 0..3 {
        tap.0.send(Ok(Frame::data(large.clone()))).unwrap();
        assert_eq!(data(&mut answer).await, large);
    }
    drop(tap);
    assert!(answer.frame().await.is_none());
}

#[tokio::test]
async fn slow_client_does_not_delay_the_settle() {
    let (tap, app, _) = fed_app(memory().0, IdempotencyConfig::new(), None);
    let answer = head(&app, "k").await;
    for _ in 0..16 {
        tap.0.send(Ok(Frame::data(Bytes::from(vec![b'x'; 64 * 1024])))).unwrap();
    }
    drop(tap);
    let waited = send(&app, post("k", "")).await;
    assert_eq!((waited.body.len(), waited.is_replay()), (1024 * 1024, true));
    drop(answer);
}

/// An app whose first response is an event stream that is fed by the test.
fn event_stream_app(store: Arc<MemoryStore>, config: IdempotencyConfig) -> (Tap, Router, Runs) {
    let (tap, body) = fed(None);
    let response = ([("content-type", "Text/Event-Stream; charset=utf-8")], Body::new(body));
    let (app, runs) = answers_once(store, config, response.into_response());
    (tap, app, runs)
}

#[tokio::test]
async fn fault_06_event_stream_that_ended_is_not_kept() {
    let (tap, app, runs) = event_stream_app(memory().0, without_wait());
    let mut answer = head(&app, "k").await;
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        tap.send(event);
        assert_eq!(data(&mut answer).await, event);
        send(&app, post("k", "")).await.assert_problem(409, "in-progress");
    }
    drop(tap);
    assert!(answer.frame().await.is_none());
    send(&app, post("k", "")).await.assert_problem(409, "response-not-kept");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn fault_06_event_stream_cut_is_unknown() {
    let (store, clock) = memory();
    let (tap, app, runs) = event_stream_app(store, IdempotencyConfig::new());
    let mut answer = head(&app, "k").await;
    tap.send("data: 1\n\n");
    assert_eq!(data(&mut answer).await, "data: 1\n\n");
    tap.break_off();
    assert!(answer.frame().await.unwrap().is_err());
    clock.advance(Duration::from_millis(1));
    send(&app, post("k", "")).await.assert_problem(409, "outcome-unknown");
    assert_eq!(runs.count(), 1);
}

/// A response above the limit, whose client has left in the middle of it.
struct AbandonedAnswer {
    tap: Tap,
    app: Router,
    clock: Arc<ManualClock>,
}

impl AbandonedAnswer {
    async fn new() -> Self {
        let (store, clock) = memory();
        let (tap, app, _) = fed_app(store, without_wait().with_max_body(4), None);
        let mut answer = head(&app, "k").await;
        tap.send("12345");
        assert_eq!(data(&mut answer).await, "12345");
        drop(answer);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        Self { tap, app, clock }
    }
}

/// The answer to a duplicate once the first run has ended.
async fn duplicate(app: &Router, clock: &ManualClock) -> FullResponse {
    for _ in 0..10_000 {
        // An abandoned claim has a lease of a millisecond.
        clock.advance(Duration::from_millis(1));
        let answer = send(app, post("k", "")).await;
        if answer.code() != "in-progress" {
            return answer;
        }
        tokio::task::yield_now().await;
    }
    panic!("the first run does not end");
}

#[tokio::test]
async fn fault_06_large_answer_cut_after_client_left_is_unknown() {
    let AbandonedAnswer { tap, app, clock } = AbandonedAnswer::new().await;
    assert!(tap.is_read(), "the rest is read although the client has left");
    tap.break_off();
    duplicate(&app, &clock).await.assert_problem(409, "outcome-unknown");
}

#[tokio::test]
async fn fault_06_large_answer_ending_after_client_left_is_not_kept() {
    let AbandonedAnswer { tap, app, clock } = AbandonedAnswer::new().await;
    tap.send("678");
    drop(tap);
    let again = duplicate(&app, &clock).await;
    again.assert_problem(409, "response-not-kept");
    assert_eq!(again.problem()["original_status"], 200);
}

#[tokio::test(start_paused = true)]
async fn fault_06_endless_answer_is_unknown_after_the_timeout() {
    let AbandonedAnswer { tap, app, clock } = AbandonedAnswer::new().await;
    // The body is idle: only the timeout can end the read.
    tap.0.closed().await;
    duplicate(&app, &clock).await.assert_problem(409, "outcome-unknown");
}

#[tokio::test]
async fn response_is_stored_after_client_disconnects() {
    let (tap, app, runs) = fed_app(memory().0, IdempotencyConfig::new(), None);
    let mut answer = head(&app, "k").await;
    tap.send("one, ");
    assert_eq!(data(&mut answer).await, "one, ");
    drop(answer);
    tap.send("two");
    drop(tap);
    assert_eq!(send(&app, post("k", "")).await.body, "one, two");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn fault_22_request_trailers_reach_the_service_without_forged_ones() {
    use tower::{Layer, service_fn};
    let (tap, body) = fed(None);
    tap.send("body");
    let forged = [("hapax-fence", "9"), ("hapax-attempt", "9"), ("idempotency-key", "z")];
    let pairs = forged.into_iter().chain([("checksum", "42")]);
    let named = pairs.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    tap.0.send(Ok(Frame::trailers(named.collect()))).unwrap();
    drop(tap);
    let layer = hapax_http::IdempotencyLayer::new(memory().0);
    let service = layer.layer(service_fn(
        |request: axum::http::Request<hapax_http::RequestBody<Fed>>| async {
            let body = request.into_body().collect().await.unwrap();
            let trailers = body.trailers().unwrap();
            assert_eq!(trailers.len(), 1, "only the layer writes the others");
            let checksum = trailers["checksum"].clone();
            let response = Response::builder().header("checksum", checksum);
            Ok::<_, Infallible>(response.body(http_body_util::Full::new(body.to_bytes())).unwrap())
        },
    ));
    let (parts, _) = post("k", "").into_parts();
    let request = axum::http::Request::from_parts(parts, body);
    let answer = service.oneshot(request).await.unwrap();
    assert_eq!(answer.headers()["checksum"], "42");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "body");
}

#[tokio::test]
async fn claim_is_pending_while_the_response_streams() {
    let (store, _) = memory();
    let config = without_wait();
    let (tap, app, _) = fed_app(store.clone(), config.clone(), None);
    let mut answer = head(&app, "k").await;
    tap.send("x");
    data(&mut answer).await;
    let conflict = send(&app, post("k", "")).await;
    conflict.assert_problem(409, "in-progress");
    assert!(conflict.header("retry-after").is_some());
    assert!(conflict.problem()["retry_after_ms"].as_u64().unwrap() > 0);
    let view = store.look(keyed(&config, "k", "").key()).await.unwrap().unwrap();
    assert!(matches!(view.state, hapax_core::claims::ClaimState::Pending { .. }));
}
