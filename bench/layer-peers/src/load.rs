//! Requests that are given to an app by calls, without a connection.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{Request, StatusCode};
use hapax_core::Token;
use hapax_workload::{BenchError, BenchOperation};
use tower::ServiceExt;

use crate::app::{ANSWER, LayerChoice, REQUEST};

/// The keys of the requests.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RequestKind {
    FirstRun,
    Replay,
    Keyless,
}

impl RequestKind {
    pub(crate) const ALL: [Self; 3] = [Self::FirstRun, Self::Replay, Self::Keyless];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::FirstRun => "first run",
            Self::Replay => "replay",
            Self::Keyless => "no key",
        }
    }
}

pub(crate) struct LayerLoad {
    app: Router,
    kind: RequestKind,
    /// Whether every response has to be a replay.
    replays: bool,
    run_id: String,
}

impl LayerLoad {
    /// Builds the app, and settles the key that is to be replayed.
    pub(crate) async fn prepare(
        layer: LayerChoice,
        kind: RequestKind,
    ) -> anyhow::Result<Arc<Self>> {
        let replays = layer != LayerChoice::None && kind == RequestKind::Replay;
        let run_id = Token::random().as_str()[..12].to_owned();
        let load = Self { app: layer.app()?, kind, replays, run_id };
        if kind == RequestKind::Replay {
            load.post(load.key(0, 0)).await?;
        }
        Ok(Arc::new(load))
    }

    fn key(&self, task: usize, turn: u64) -> Option<String> {
        match self.kind {
            RequestKind::FirstRun => Some(format!("{}-{task}-{turn}", self.run_id)),
            RequestKind::Replay => Some(self.run_id.clone()),
            RequestKind::Keyless => None,
        }
    }

    /// Sends a request, reads its response, and returns whether that is a replay.
    async fn post(&self, key: Option<String>) -> Result<bool, BenchError> {
        let mut request = Request::post("/orders")
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, "Bearer 0123456789abcdef0123456789abcdef");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Body::from(REQUEST)).map_err(engine)?;
        let response = match self.app.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let replayed = response.headers().get("idempotent-replayed").is_some_and(|v| v == "true");
        if response.status() != StatusCode::CREATED {
            return Err(BenchError::Engine(format!("201 was expected: {}", response.status())));
        }
        if to_bytes(response.into_body(), ANSWER.len()).await.map_err(engine)? != ANSWER {
            return Err(BenchError::Unexpected("not the handler's answer"));
        }
        Ok(replayed)
    }
}

#[async_trait]
impl BenchOperation for LayerLoad {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        match (self.post(self.key(task, turn)).await?, self.replays) {
            (true, false) => Err(BenchError::Unexpected("a request was answered with a replay")),
            (false, true) => Err(BenchError::Unexpected("a settled key ran again")),
            _ => Ok(()),
        }
    }
}

fn engine(error: impl ToString) -> BenchError {
    BenchError::Engine(error.to_string())
}
