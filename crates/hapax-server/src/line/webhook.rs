//! `POST /line/webhook`, with a problem document where the answer is no 200.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use hapax::trace::{TRACEPARENT, Traceparent, within};
use hapax_line::{Gateway, SIGNATURE_HEADER, WebhookStatus};
use hyper::StatusCode;
use hyper::header::HeaderMap;
use tokio::sync::Semaphore;

use crate::serve::body;
use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::system::no_method;

/// So much of a body is read; LINE's are far smaller.
const MAX_BODY: usize = 1 << 20;
/// So many webhooks are read at once: nobody knows who sends them before they are read.
const AT_ONCE: usize = 1024;

#[derive(Clone)]
struct Door {
    gateway: Gateway,
    body_timeout: Duration,
    places: Arc<Semaphore>,
}

/// The webhook, and documents for everything that there is not.
pub(super) fn routes(gateway: Gateway, body_timeout: Duration) -> Router {
    let door = Door { gateway, body_timeout, places: Arc::new(Semaphore::new(AT_ONCE)) };
    Router::new()
        .route("/line/webhook", post(receive))
        .with_state(door)
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
}

async fn receive(State(door): State<Door>, request: Request) -> Result<StatusCode, Problem> {
    let Ok(_place) = door.places.try_acquire() else {
        body::discard(request.into_body()).await;
        return Err(later(ProblemKind::TooManyRequests, "too many webhooks are being read"));
    };
    let (head, body) = request.into_parts();
    let body = body::read(body, MAX_BODY, door.body_timeout).await?;
    let signature = text(&head.headers, SIGNATURE_HEADER);
    let trace = text(&head.headers, TRACEPARENT).and_then(Traceparent::parse);
    match within(trace, door.gateway.receive(signature, &body)).await {
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
        WebhookStatus::Unavailable => Err(later(
            ProblemKind::StoreUnavailable,
            "nothing was stored or handled; deliver it again",
        )),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn later(kind: ProblemKind, detail: &'static str) -> Problem {
    Problem::new(kind, detail).retry_after(Duration::from_secs(1))
}

async fn no_route(request: Request) -> Problem {
    body::discard(request.into_body()).await;
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
        ChannelSecrets, EventContext, EventHandler, EventHandlerError, GatewayConfig, LineClient,
        LineEvent,
    };
    use tower::ServiceExt;

    use super::*;

    struct Nobody;

    #[async_trait]
    impl EventHandler for Nobody {
        async fn handle(&self, _: &LineEvent, _: &EventContext) -> Result<(), EventHandlerError> {
            Ok(())
        }
    }

    fn door() -> Router {
        let secrets = ChannelSecrets::new("secret").unwrap();
        let line = LineClient::new("http://127.0.0.1:9", "token").unwrap();
        let store = Arc::new(MemoryStore::default());
        let gateway =
            Gateway::new(store, secrets, line, Arc::new(Nobody), GatewayConfig::default());
        routes(gateway, Duration::from_secs(3600))
    }

    fn webhook(body: Body) -> Request {
        Request::post("/line/webhook").body(body).unwrap()
    }

    #[tokio::test]
    async fn webhook_beyond_the_concurrent_maximum_is_429() {
        let door = door();
        let status = async || door.clone().oneshot(webhook(Body::empty())).await.unwrap().status();
        // Each has its place as soon as it is looked at, and its body never comes.
        let stuck = || {
            let body =
                Body::from_stream(futures_util::stream::pending::<Result<&str, std::io::Error>>());
            let mut reading = Box::pin(door.clone().oneshot(webhook(body)));
            assert!(reading.as_mut().now_or_never().is_none());
            reading
        };
        let mut reading: Vec<_> = (0..AT_ONCE).map(|_| stuck()).collect();
        assert_eq!(status().await, StatusCode::TOO_MANY_REQUESTS);
        // Who goes away makes room: this one is read, and is not signed.
        drop(reading.pop());
        assert_eq!(status().await, StatusCode::UNAUTHORIZED);
    }
}
