//! A response body that is fed by the test.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Response};
use axum::response::IntoResponse;
use bytes::Bytes;
use hapax_core::Claims;
use hapax_http::IdempotencyConfig;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tower::ServiceExt;

use super::{Runs, app, post};

pub(crate) type Piece = Result<Frame<Bytes>, std::io::Error>;

/// A body that is fed by the test.
pub(crate) struct Fed {
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

/// Feeds a [`Fed`] body; the body ends when this is dropped.
pub(crate) struct Tap(pub(crate) mpsc::UnboundedSender<Piece>);

impl Tap {
    pub(crate) fn send(&self, data: &'static str) {
        self.0.send(Ok(Frame::data(data.into()))).unwrap();
    }

    pub(crate) fn trailers(&self, name: &'static str, value: &'static str) {
        let mut trailers = HeaderMap::new();
        trailers.insert(name, value.parse().unwrap());
        self.0.send(Ok(Frame::trailers(trailers))).unwrap();
    }

    pub(crate) fn break_off(&self) {
        self.0.send(Err(std::io::Error::other("cut"))).unwrap();
    }

    pub(crate) fn is_read(&self) -> bool {
        !self.0.is_closed()
    }
}

pub(crate) fn fed(length: Option<u64>) -> (Tap, Fed) {
    let (tap, pieces) = mpsc::unbounded_channel();
    (Tap(tap), Fed { pieces, length })
}

/// An app that responds to the first request with `response`, and counts its runs.
pub(crate) fn answers_once(
    store: Arc<dyn Claims>,
    config: IdempotencyConfig,
    response: Response<Body>,
) -> (Router, Runs) {
    let (runs, response) = (Runs::default(), Arc::new(Mutex::new(Some(response))));
    let counted = runs.clone();
    let app = app(store, config, || async move {
        counted.add();
        response.lock().unwrap().take().unwrap_or_else(|| "ran again".into_response())
    });
    (app, runs)
}

/// An app whose first response has a body that is fed by the test.
pub(crate) fn fed_app(
    store: Arc<dyn Claims>,
    config: IdempotencyConfig,
    length: Option<u64>,
) -> (Tap, Router, Runs) {
    let (tap, body) = fed(length);
    let (app, runs) = answers_once(store, config, Response::new(Body::new(body)));
    (tap, app, runs)
}

pub(crate) async fn head(app: &Router, key: &'static str) -> Body {
    app.clone().oneshot(post(key, "")).await.unwrap().into_body()
}

pub(crate) async fn data(body: &mut Body) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}
