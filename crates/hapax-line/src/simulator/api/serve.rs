//! The HTTP server of the simulated API.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::check::{ApiRefusal, SimulatedApiRequest};
use super::state::ApiState;
use super::{ApiEndpoint, ApiFault};

/// The largest body that LINE accepts.
const MAX_BODY: usize = 2 << 20;
/// The pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until it is dropped, and closes all connections then.
pub(super) async fn serve(listener: TcpListener, state: Arc<ApiState>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
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

/// Makes hyper close the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("cut")]
struct Cut;

type ApiResponse = Response<Full<Bytes>>;

async fn answer(state: Arc<ApiState>, request: Request<Incoming>) -> Result<ApiResponse, Cut> {
    let request_id = Uuid::new_v4().to_string();
    let mut answer = process(&state, request, &request_id).await?;
    answer.headers_mut().insert("x-line-request-id", header(&request_id));
    Ok(answer)
}

async fn process(
    state: &ApiState,
    request: Request<Incoming>,
    id: &str,
) -> Result<ApiResponse, Cut> {
    if request.method() == Method::GET
        && let Some(answer) = quota(state, request.uri().path())
    {
        let expected = format!("Bearer {}", state.access_token);
        let presented = request.headers().get(AUTHORIZATION);
        return Ok(match presented.is_some_and(|token| token.as_bytes() == expected.as_bytes()) {
            true => reply(200, answer),
            false => refused(state, ApiRefusal::new(401, "Authentication failed")),
        });
    }
    let Some(endpoint) = endpoint(request.uri().path()) else {
        return Ok(refused(state, ApiRefusal::new(404, "Not found")));
    };
    let (head, body) = request.into_parts();
    if head.method != Method::POST {
        return Ok(refused(state, ApiRefusal::new(405, "Method not allowed")));
    }
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Ok(refused(state, ApiRefusal::new(413, "Request entity too large")));
        }
        // The caller disconnected while sending, which is not a violation.
        Err(_) => return Err(Cut),
    };
    let usual = || {
        let request =
            SimulatedApiRequest::read(endpoint, &head.headers, &body, &state.access_token);
        match request.and_then(|request| state.accept(request, id)) {
            Ok(None) => reply(endpoint.success(), json!({})),
            Ok(Some(first)) => before(&first),
            Err(refusal) => refused(state, refusal),
        }
    };
    let fault = state.calls().faults.get_mut(&endpoint).and_then(VecDeque::pop_front);
    if fault.is_some_and(leaves_doubt) {
        state.doubt(&body);
    }
    Ok(match fault {
        None => usual(),
        Some(ApiFault::Status(status)) => reply(status, json!({ "message": "as planned" })),
        Some(ApiFault::StatusAfter(status)) => {
            usual();
            reply(status, json!({ "message": "as planned" }))
        }
        Some(ApiFault::TooMany { retry_after }) => too_many(retry_after),
        Some(ApiFault::Hang) => match std::future::pending::<Infallible>().await {},
        Some(ApiFault::Cut) => return Err(Cut),
        Some(ApiFault::CutAfter) => {
            usual();
            return Err(Cut);
        }
    })
}

/// How many messages may be sent, or were: pushes count, replies do not.
fn quota(state: &ApiState, path: &str) -> Option<Value> {
    let calls = state.calls();
    match path {
        "/v2/bot/message/quota" => Some(match calls.monthly_limit {
            Some(limit) => json!({ "type": "limited", "value": limit }),
            None => json!({ "type": "none" }),
        }),
        "/v2/bot/message/quota/consumption" => {
            let pushes = calls.accepted.iter().filter(|call| call.endpoint == ApiEndpoint::Push);
            Some(json!({ "totalUsage": pushes.count() }))
        }
        _ => None,
    }
}

fn endpoint(path: &str) -> Option<ApiEndpoint> {
    match path {
        "/v2/bot/message/reply" => Some(ApiEndpoint::Reply),
        "/v2/bot/message/push" => Some(ApiEndpoint::Push),
        "/v2/bot/chat/loading/start" => Some(ApiEndpoint::Loading),
        _ => None,
    }
}

/// Whether the caller cannot know that the call was not accepted.
fn leaves_doubt(fault: ApiFault) -> bool {
    match fault {
        ApiFault::Status(status) => status >= 500,
        ApiFault::Hang | ApiFault::Cut => true,
        // A 429 certainly means that the call was not accepted; the other two record it as
        // accepted.
        ApiFault::TooMany { .. } | ApiFault::StatusAfter(_) | ApiFault::CutAfter => false,
    }
}

impl ApiEndpoint {
    fn success(self) -> u16 {
        if self == Self::Loading { 202 } else { 200 }
    }
}

fn refused(state: &ApiState, refusal: ApiRefusal) -> ApiResponse {
    state.calls().violations.push(refusal.why.to_owned());
    reply(refusal.status, json!({ "message": refusal.why }))
}

fn before(first: &str) -> ApiResponse {
    let mut answer = reply(409, json!({ "message": "The retry key is already accepted" }));
    answer.headers_mut().insert("x-line-accepted-request-id", header(first));
    answer
}

fn too_many(retry_after: Option<u64>) -> ApiResponse {
    let mut answer = reply(429, json!({ "message": "You have reached your rate limit" }));
    if let Some(seconds) = retry_after {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    answer
}

fn reply(status: u16, body: Value) -> ApiResponse {
    let mut answer = Response::new(Full::new(body.to_string().into()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

fn header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("a UUID is one")
}
