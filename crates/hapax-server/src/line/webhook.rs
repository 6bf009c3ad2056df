//! `POST /line/webhook`; every response but 200 is a problem document.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use hapax::trace::{TRACEPARENT, Traceparent, within};
use hapax_http::MemoryBudget;
use hapax_line::{Gateway, SIGNATURE_HEADER, WebhookStatus};
use hyper::StatusCode;
use hyper::header::HeaderMap;
use tokio::sync::Semaphore;

use crate::daemon::{body, method_not_allowed};
use crate::problem::{Problem, ProblemKind};

/// The largest body; LINE's are far smaller.
const MAX_BODY: usize = 1 << 20;
/// How many webhooks are read at once: only the whole body shows whether LINE signed it.
const MAX_CONCURRENT: usize = 1024;

#[derive(Clone)]
struct WebhookState {
    gateway: Gateway,
    body_timeout: Duration,
    memory: MemoryBudget,
    permits: Arc<Semaphore>,
}

/// The webhook, and problem documents for every other path and method.
pub(super) fn routes(gateway: Gateway, body_timeout: Duration, memory: MemoryBudget) -> Router {
    let permits = Arc::new(Semaphore::new(MAX_CONCURRENT));
    let state = WebhookState { gateway, body_timeout, memory, permits };
    Router::new()
        .route("/line/webhook", post(receive))
        .with_state(state)
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
}

async fn receive(
    State(state): State<WebhookState>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let Ok(_permit) = state.permits.try_acquire() else {
        return Err(retry_later(ProblemKind::TooManyRequests, "too many webhooks are being read"));
    };
    let (head, body) = request.into_parts();
    let (body, _memory) = body::read(body, MAX_BODY, state.body_timeout, &state.memory).await?;
    let signature = header(&head.headers, SIGNATURE_HEADER);
    let trace = header(&head.headers, TRACEPARENT).and_then(Traceparent::parse);
    match within(trace, state.gateway.receive(signature, &body)).await {
        WebhookStatus::Accepted => Ok(StatusCode::OK),
        WebhookStatus::Unsigned => Err(Problem::new(
            ProblemKind::LineSignature,
            "`X-Line-Signature` is not that of this body; LINE_CHANNEL_SECRET is the secret of the \
             channel that sends it, or two of them with a comma while it is changed",
        )),
        WebhookStatus::Malformed => Err(Problem::new(
            ProblemKind::LineWebhook,
            "it is signed, but no JSON object with `destination` and `events`",
        )),
        WebhookStatus::Unavailable => Err(retry_later(
            ProblemKind::StoreUnavailable,
            "nothing was stored or handled; deliver it again",
        )),
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn retry_later(kind: ProblemKind, detail: &'static str) -> Problem {
    Problem::new(kind, detail).retry_after(Duration::from_secs(1))
}

async fn no_route() -> Problem {
    Problem::new(ProblemKind::NotFound, "webhooks are taken at /line/webhook")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use axum::body::Body;
    use futures_util::FutureExt;
    use hapax::memory::MemoryStore;
    use hapax_line::{
        ChannelSecrets, EventContext, EventHandlerError, GatewayConfig, LineClient, LineEvent,
        LineEventHandler,
    };
    use tower::ServiceExt;

    use super::*;

    struct IdleBot;

    #[async_trait]
    impl LineEventHandler for IdleBot {
        async fn handle(&self, _: &LineEvent, _: &EventContext) -> Result<(), EventHandlerError> {
            Ok(())
        }
    }

    fn router() -> Router {
        let secrets = ChannelSecrets::new("secret").unwrap();
        let line = LineClient::new("http://127.0.0.1:9", "token").unwrap();
        let store = Arc::new(MemoryStore::default());
        let gateway =
            Gateway::new(store, secrets, line, Arc::new(IdleBot), GatewayConfig::default());
        routes(gateway, Duration::from_secs(3600), MemoryBudget::default())
    }

    fn webhook(body: Body) -> Request {
        Request::post("/line/webhook").body(body).unwrap()
    }

    #[tokio::test]
    async fn webhook_beyond_the_concurrent_maximum_is_429() {
        let router = router();
        let status =
            async || router.clone().oneshot(webhook(Body::empty())).await.unwrap().status();
        // Each has its permit after the first poll, and its body never comes.
        let stuck = || {
            let body =
                Body::from_stream(futures_util::stream::pending::<Result<&str, std::io::Error>>());
            let mut reading = Box::pin(router.clone().oneshot(webhook(body)));
            assert!(reading.as_mut().now_or_never().is_none());
            reading
        };
        let mut reading: Vec<_> = (0..MAX_CONCURRENT).map(|_| stuck()).collect();
        assert_eq!(status().await, StatusCode::TOO_MANY_REQUESTS);
        // A client that goes away frees its permit: this webhook is read, and is not signed.
        drop(reading.pop());
        assert_eq!(status().await, StatusCode::UNAUTHORIZED);
    }
}
