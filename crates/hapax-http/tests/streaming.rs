//! Answers that come bit by bit, and their ends.

mod common;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use common::{Gated, Heard, Runs, app, impatient, keyed, memory, post, send, try_send};
use hapax_core::{Claims, OnUnknown};
use hapax_http::{Event, Settings};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tower::ServiceExt;

type Piece = Result<Frame<Bytes>, std::io::Error>;

/// A body that the test feeds.
struct Fed {
    pieces: mpsc::UnboundedReceiver<Piece>,
    length: Option<u64>,
}

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.pieces.poll_recv(cx)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// The other end of it; dropped, the body ends.
struct Tap(mpsc::UnboundedSender<Piece>);

impl Tap {
    fn send(&self, data: &'static str) {
        self.0.send(Ok(Frame::data(data.into()))).unwrap();
    }

    fn trailers(&self, name: &'static str, value: &'static str) {
        let mut trailers = HeaderMap::new();
        trailers.insert(name, value.parse().unwrap());
        self.0.send(Ok(Frame::trailers(trailers))).unwrap();
    }

    fn break_off(&self) {
        self.0.send(Err(std::io::Error::other("cut"))).unwrap();
    }

    fn is_read(&self) -> bool {
        !self.0.is_closed()
    }
}

fn fed(length: Option<u64>) -> (Tap, Fed) {
    let (tap, pieces) = mpsc::unbounded_channel();
    (Tap(tap), Fed { pieces, length })
}

/// An app that answers the first request with this, and counts.
fn answers_once(
    store: Arc<dyn Claims>,
    settings: Settings,
    response: Response<Body>,
) -> (Router, Runs) {
    let (runs, response) = (Runs::default(), Arc::new(Mutex::new(Some(response))));
    let counted = runs.clone();
    let app = app(store, settings, || async move {
        counted.add();
        response.lock().unwrap().take().unwrap_or_else(|| "ran again".into_response())
    });
    (app, runs)
}

fn streams(settings: Settings, body: Fed) -> (Router, Runs) {
    answers_once(memory().0, settings, Response::new(Body::new(body)))
}

async fn head(app: &Router, key: &'static str) -> Body {
    app.clone().oneshot(post(key, "")).await.unwrap().into_body()
}

async fn data(body: &mut Body) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

/// Whether nothing comes, as far as anything comes without anybody doing something.
async fn is_silent(body: &mut Body) -> bool {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(Duration::from_millis(20), body.frame()).await.is_err()
}

#[tokio::test]
async fn an_answer_streams_as_it_comes_and_is_replayed_whole() {
    let (tap, body) = fed(None);
    let (app, runs) = streams(Settings::default(), body);
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

#[tokio::test(start_paused = true)]
async fn the_end_of_an_answer_without_length_comes_after_the_settle() {
    let (store, settles) = Gated::new();
    let (tap, body) = fed(None);
    let settings = Settings { store_limit: Duration::from_secs(3600), ..Settings::default() };
    let (app, _) = answers_once(store, settings, Response::new(Body::new(body)));
    let mut answer = head(&app, "k").await;
    tap.send("all of it");
    assert_eq!(data(&mut answer).await, "all of it");
    drop(tap);
    settles.knocked().await;
    assert!(is_silent(&mut answer).await);
    settles.let_one_in();
    assert!(answer.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_last_byte_of_an_answer_with_a_length_comes_after_the_settle() {
    for written_by_hand in [false, true] {
        let (store, settles) = Gated::new();
        let (tap, body) = fed(if written_by_hand { None } else { Some(6) });
        let mut response = Response::new(Body::new(body));
        if written_by_hand {
            response.headers_mut().insert("content-length", 6.into());
        }
        let settings = Settings { store_limit: Duration::from_secs(3600), ..Settings::default() };
        let (app, _) = answers_once(store, settings, response);
        let mut answer = head(&app, "k").await;
        tap.send("abc");
        assert_eq!(data(&mut answer).await, "abc");
        tap.send("def");
        settles.knocked().await;
        assert!(is_silent(&mut answer).await);
        settles.let_one_in();
        // The tap still runs: the length says that it was all.
        assert_eq!(data(&mut answer).await, "def");
        assert!(answer.frame().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn not_even_the_head_of_an_answer_that_is_there_at_once_comes_before_the_settle() {
    let (ready, body) = fed(Some(3));
    ready.send("abc");
    for response in [
        StatusCode::NO_CONTENT.into_response(),
        "abc".into_response(),
        Response::new(Body::new(body)),
    ] {
        let (store, settles) = Gated::new();
        let settings = Settings { store_limit: Duration::from_secs(3600), ..Settings::default() };
        let (app, _) = answers_once(store, settings, response);
        let first = app.clone().oneshot(post("k", ""));
        tokio::pin!(first);
        tokio::select! {
            _ = &mut first => panic!("answered before it was stored"),
            () = settles.knocked() => {}
        }
        settles.let_one_in();
        assert!(first.await.unwrap().status().is_success());
    }
}

#[tokio::test(start_paused = true)]
async fn trailers_come_after_the_settle_and_are_replayed() {
    let (store, settles) = Gated::new();
    let (tap, body) = fed(None);
    let settings = Settings { store_limit: Duration::from_secs(3600), ..Settings::default() };
    let (app, _) = answers_once(store, settings, Response::new(Body::new(body)));
    let mut answer = head(&app, "k").await;
    tap.send("message");
    assert_eq!(data(&mut answer).await, "message");
    tap.trailers("grpc-status", "0");
    settles.knocked().await;
    assert!(is_silent(&mut answer).await);
    settles.let_one_in();
    let trailers = answer.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    let again = send(&app, post("k", "")).await;
    assert_eq!((&again.body[..], again.trailers), (&b"message"[..], Some(trailers)));
    assert_eq!(again.headers["trailer"], "grpc-status");
    assert!(!again.headers.contains_key("trailer:grpc-status"));
}

#[tokio::test]
async fn trailers_that_are_there_at_once_are_replayed_too() {
    let (tap, body) = fed(None);
    tap.send("message");
    tap.trailers("grpc-status", "0");
    let (app, _) = streams(Settings::default(), body);
    let first = send(&app, post("k", "")).await;
    let again = send(&app, post("k", "")).await;
    assert_eq!((first.body, first.trailers), (again.body, again.trailers.clone()));
    assert_eq!(again.trailers.unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn an_answer_over_the_limit_arrives_whole_and_leaves_a_tombstone() {
    // In one piece with a length; in pieces that are there at once, in one that is; bit by bit.
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
        let heard = Heard::default();
        let settings = Settings { limit: 4, ..heard.settings() };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::CREATED;
        let (app, runs) = answers_once(memory().0, settings, response);
        assert_eq!(send(&app, post("k", "")).await.body, "12345678");
        let again = send(&app, post("k", "")).await;
        assert_eq!((again.status.as_u16(), again.code().as_str()), (409, "response-not-kept"));
        assert_eq!(again.problem()["original_status"], 201);
        assert_eq!(again.problem()["retryable"], false);
        assert_eq!(runs.count(), 1);
        assert_eq!((heard.count(Event::NotKept), heard.count(Event::Kept)), (1, 0));
    }
}

#[tokio::test]
async fn an_answer_of_exactly_the_limit_is_kept() {
    for body in [Body::from("1234"), {
        let (tap, body) = fed(None);
        tap.send("12");
        tap.send("34");
        Body::new(body)
    }] {
        let settings = Settings { limit: 4, ..Settings::default() };
        let (app, _) = answers_once(memory().0, settings, Response::new(body));
        assert_eq!(send(&app, post("k", "")).await.body, "1234");
        assert_eq!(send(&app, post("k", "")).await.body, "1234");
    }
}

#[tokio::test]
async fn a_frame_larger_than_everything_that_may_wait_arrives() {
    let (tap, body) = fed(None);
    let settings = Settings { limit: 1024, ..Settings::default() };
    let (app, _) = streams(settings, body);
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
async fn a_client_that_does_not_read_does_not_keep_the_answer_from_being_stored() {
    let (tap, body) = fed(None);
    let (app, _) = streams(Settings::default(), body);
    let answer = head(&app, "k").await;
    for _ in 0..16 {
        tap.0.send(Ok(Frame::data(Bytes::from(vec![b'x'; 64 * 1024])))).unwrap();
    }
    drop(tap);
    let waited = send(&app, post("k", "")).await;
    assert_eq!((waited.body.len(), waited.is_replay()), (1024 * 1024, true));
    drop(answer);
}

#[tokio::test]
async fn events_pass_through_unbuffered_and_are_remembered_at_once() {
    let (tap, body) = fed(None);
    let response = ([("content-type", "Text/Event-Stream; charset=utf-8")], Body::new(body));
    let (app, runs) = answers_once(memory().0, impatient(), response.into_response());
    let mut answer = head(&app, "k").await;
    tap.send("data: 1\n\n");
    assert_eq!(data(&mut answer).await, "data: 1\n\n");
    assert_eq!(send(&app, post("k", "")).await.code(), "response-not-kept");
    tap.send("data: 2\n\n");
    assert_eq!(data(&mut answer).await, "data: 2\n\n");
    // As without the layer: nobody makes events that nobody hears.
    drop(answer);
    assert!(!tap.is_read());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn an_answer_that_breaks_off_leaves_the_outcome_unknown() {
    for there_at_once in [true, false] {
        let (tap, body) = fed(None);
        let (store, clock) = memory();
        let (app, runs) = answers_once(store, impatient(), Response::new(Body::new(body)));
        if there_at_once {
            tap.send("half");
            tap.break_off();
            let answer = send(&app, post("k", "")).await;
            assert_eq!((answer.status.as_u16(), answer.code().as_str()), (502, "outcome-unknown"));
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
async fn an_answer_shorter_or_longer_than_it_said_is_no_answer() {
    for (said, sent) in [(6, "abc"), (2, "abc")] {
        for at_once in [true, false] {
            let (tap, body) = fed(Some(said));
            let (store, clock) = memory();
            let (app, _) = answers_once(store, impatient(), Response::new(Body::new(body)));
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
async fn a_body_that_panics_does_not_look_like_a_whole_answer() {
    let heard = Heard::default();
    let first = Body::from_stream(futures_util::stream::once(async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok::<_, Infallible>(Bytes::from("half"))
    }));
    // Half of it, then the panic.
    let body = Body::new(Chain(first, Panics));
    let settings = Settings { wait: Duration::ZERO, ..heard.settings() };
    let (store, clock) = memory();
    let (app, _) = answers_once(store, settings, Response::new(body));
    assert!(try_send(&app, post("k", "")).await.is_err());
    heard.until(Event::Unknown).await;
    clock.advance(Duration::from_millis(1));
    assert_eq!(send(&app, post("k", "")).await.code(), "outcome-unknown");
}

/// One body after the other.
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
async fn when_the_client_goes_away_the_answer_is_read_to_its_end_and_stored() {
    let (tap, body) = fed(None);
    let (app, runs) = streams(Settings::default(), body);
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
async fn an_endless_answer_that_nobody_hears_any_more_is_let_go() {
    let (tap, body) = fed(None);
    let settings = Settings { limit: 4, ..impatient() };
    let (app, _) = streams(settings, body);
    let mut answer = head(&app, "k").await;
    tap.send("12345");
    assert_eq!(data(&mut answer).await, "12345");
    drop(answer);
    // It neither goes on nor ends: only the client's going away can end it.
    tap.0.closed().await;
    assert_eq!(send(&app, post("k", "")).await.code(), "response-not-kept");
}

#[tokio::test]
async fn a_late_answer_that_is_under_way_is_cut_and_the_winners_stays() {
    let (store, clock) = memory();
    let settings = Settings { on_unknown: OnUnknown::TakeOver, ..impatient() };
    let (tap, body) = fed(None);
    let (app, runs) = answers_once(store, settings.clone(), Response::new(Body::new(body)));
    let mut late = head(&app, "k").await;
    tap.send("late");
    assert_eq!(data(&mut late).await, "late");
    clock.advance(settings.lease);
    assert_eq!(send(&app, post("k", "")).await.body, "ran again");
    drop(tap);
    assert!(late.frame().await.unwrap().is_err());
    assert_eq!(send(&app, post("k", "")).await.body, "ran again");
    assert_eq!(runs.count(), 2);
}

#[tokio::test]
async fn request_trailers_reach_the_service() {
    use tower::{Layer, service_fn};
    let (tap, body) = fed(None);
    tap.send("body");
    tap.trailers("checksum", "42");
    drop(tap);
    let layer = hapax_http::IdempotencyLayer::new(memory().0, Settings::default());
    let service =
        layer.layer(service_fn(|request: axum::http::Request<hapax_http::Body<Fed>>| async {
            let body = request.into_body().collect().await.unwrap();
            let checksum = body.trailers().unwrap()["checksum"].clone();
            let response = Response::builder().header("checksum", checksum);
            Ok::<_, Infallible>(response.body(http_body_util::Full::new(body.to_bytes())).unwrap())
        }));
    let (parts, _) = post("k", "").into_parts();
    let request = axum::http::Request::from_parts(parts, body);
    let answer = service.oneshot(request).await.unwrap();
    assert_eq!(answer.headers()["checksum"], "42");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "body");
}

#[tokio::test]
async fn a_pending_claim_is_seen_while_the_answer_streams() {
    let (store, _) = memory();
    let (tap, body) = fed(None);
    let settings = impatient();
    let (app, _) = answers_once(store.clone(), settings.clone(), Response::new(Body::new(body)));
    let mut answer = head(&app, "k").await;
    tap.send("x");
    data(&mut answer).await;
    let conflict = send(&app, post("k", "")).await;
    assert_eq!((conflict.status.as_u16(), conflict.code().as_str()), (409, "in-progress"));
    assert!(conflict.header("retry-after").is_some());
    assert!(conflict.problem()["retry_after_ms"].as_u64().unwrap() > 0);
    let view = store.look(&keyed(&settings, "k", "").key).await.unwrap().unwrap();
    assert!(matches!(view.state, hapax_core::claims::State::Pending { .. }));
}
