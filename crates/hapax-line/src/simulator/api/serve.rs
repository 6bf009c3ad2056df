//! Requests in, answers out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::check::{Refusal, Wanted};
use super::state::{Accepted, State};
use super::{Endpoint, Fault};

/// As much as LINE reads.
const MAX_BODY: usize = 2 << 20;
/// How long it rests where no connection can be accepted, such as without free file descriptors.
const REST: Duration = Duration::from_millis(50);

/// Serves until it is dropped, and all connections with it.
pub(super) async fn all(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(REST).await;
            continue;
        };
        let state = state.clone();
        let service = service_fn(move |request| answer(state.clone(), request));
        let mut server = http1::Builder::new();
        let connection =
            server.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
        connections.spawn(async move {
            let _ = connection.await;
        });
    }
}

/// The connection is closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("cut")]
struct Cut;

type Answer = Response<Full<Bytes>>;

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Answer, Cut> {
    let request_id = Uuid::new_v4().to_string();
    let mut answer = treat(&state, request, &request_id).await?;
    answer.headers_mut().insert("x-line-request-id", header(&request_id));
    Ok(answer)
}

async fn treat(state: &State, request: Request<Incoming>, id: &str) -> Result<Answer, Cut> {
    let Some(endpoint) = endpoint(request.uri().path()) else {
        return Ok(refused(state, Refusal::new(404, "Not found")));
    };
    let (head, body) = request.into_parts();
    if head.method != Method::POST {
        return Ok(refused(state, Refusal::new(405, "Method not allowed")));
    }
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Ok(refused(state, Refusal::new(413, "Request entity too large")));
        }
        // The caller died in the middle: no fault of what he sent.
        Err(_) => return Err(Cut),
    };
    let usual = || match Wanted::read(endpoint, &head.headers, &body, state.access_token()) {
        Ok(wanted) => match state.accept(wanted, id) {
            Ok(Accepted::Now) => reply(endpoint.success(), json!({})),
            Ok(Accepted::Before(first)) => before(&first),
            Err(refusal) => refused(state, refusal),
        },
        Err(refusal) => refused(state, refusal),
    };
    let fault = state.next_fault(endpoint);
    if fault.is_some_and(leaves_doubt) {
        state.doubt(&body);
    }
    Ok(match fault {
        None => usual(),
        Some(Fault::Status(status)) => reply(status, json!({ "message": "as planned" })),
        Some(Fault::StatusAfter(status)) => {
            usual();
            reply(status, json!({ "message": "as planned" }))
        }
        Some(Fault::TooMany { retry_after }) => too_many(retry_after),
        Some(Fault::Hang) => match std::future::pending::<Infallible>().await {},
        Some(Fault::Cut) => return Err(Cut),
        Some(Fault::CutAfter) => {
            usual();
            return Err(Cut);
        }
    })
}

fn endpoint(path: &str) -> Option<Endpoint> {
    match path {
        "/v2/bot/message/reply" => Some(Endpoint::Reply),
        "/v2/bot/message/push" => Some(Endpoint::Push),
        "/v2/bot/chat/loading/start" => Some(Endpoint::Loading),
        _ => None,
    }
}

/// Whether the caller cannot know that nothing was accepted.
fn leaves_doubt(fault: Fault) -> bool {
    match fault {
        Fault::Status(status) => status >= 500,
        Fault::Hang | Fault::Cut => true,
        // The first is certain; the others are in the books as accepted.
        Fault::TooMany { .. } | Fault::StatusAfter(_) | Fault::CutAfter => false,
    }
}

impl Endpoint {
    fn success(self) -> u16 {
        if self == Self::Loading { 202 } else { 200 }
    }
}

fn refused(state: &State, refusal: Refusal) -> Answer {
    state.violated(refusal.why);
    reply(refusal.status, json!({ "message": refusal.why }))
}

fn before(first: &str) -> Answer {
    let mut answer = reply(409, json!({ "message": "The retry key is already accepted" }));
    answer.headers_mut().insert("x-line-accepted-request-id", header(first));
    answer
}

fn too_many(retry_after: Option<u64>) -> Answer {
    let mut answer = reply(429, json!({ "message": "You have reached your rate limit" }));
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    answer
}

fn reply(status: u16, body: Value) -> Answer {
    let mut answer = Response::new(Full::new(body.to_string().into()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("a UUID is one")
}
