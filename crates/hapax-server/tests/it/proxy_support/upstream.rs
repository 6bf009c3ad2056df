//! An upstream that counts its requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::HeaderMap;
use hyper::{StatusCode, Uri};
use tokio::net::TcpListener;

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    /// A number in the query: `?ms=200`.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let pairs = self.uri.query().unwrap_or_default().split('&');
        let mut found = pairs.filter_map(|pair| pair.split_once('='));
        found.find(|(n, _)| *n == name).and_then(|(_, value)| value.parse().ok())
    }
}

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Seen>>>);

impl Log {
    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen().len()
    }

    pub(crate) fn last(&self) -> Seen {
        self.seen().last().cloned().expect("a request")
    }

    /// The number of runs of each key.
    pub(crate) fn executions(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        for seen in self.seen().iter() {
            let key = seen.header("idempotency-key").unwrap_or("none").to_owned();
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    pub(crate) fn note(&self, seen: Seen) -> usize {
        let mut all = self.seen();
        all.push(seen);
        all.len()
    }
}

/// A running upstream. Ends with the test's runtime.
pub(crate) struct Upstream {
    pub(crate) port: u16,
    pub(crate) log: Log,
}

impl Upstream {
    /// Starts an upstream that obeys the query: `?ms=` waits, `?status=`, `?size=` bytes of body; else 201 and
    /// `run N`.
    pub(crate) async fn start() -> Self {
        Self::with(Router::new()).await
    }

    /// The same with further routes.
    pub(crate) async fn with(router: Router<Log>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self::on(listener, router).await
    }

    /// The same on an existing listener.
    pub(crate) async fn on(listener: TcpListener, router: Router<Log>) -> Self {
        let (port, log) = (listener.local_addr().expect("bound").port(), Log::default());
        let app = router.fallback(answer).with_state(log.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { port, log }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

async fn answer(State(log): State<Log>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let seen = Seen { uri, headers, body };
    let run = log.note(seen.clone());
    if let Some(ms) = seen.number("ms") {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    let status = seen.number("status").unwrap_or(201);
    let status = StatusCode::from_u16(status as u16).expect("a status");
    let body = match seen.number("size") {
        Some(size) => Body::from(vec![b'x'; size as usize]),
        None if status == StatusCode::NO_CONTENT => Body::empty(),
        None => Body::from(format!("run {run}")),
    };
    (status, [("x-run", run.to_string())], body).into_response()
}
