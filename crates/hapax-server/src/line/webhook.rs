//! `POST /line/webhook`, with a problem document where the answer is no 200.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use hapax::trace::{TRACEPARENT, Traceparent, within};
use hapax_line::{Answer, Gateway, SIGNATURE};
use hyper::StatusCode;
use hyper::header::HeaderMap;
use tokio::sync::Semaphore;

use crate::serve::body;
use crate::serve::problem::{Kind, NOT_FOUND, Problem, STORE_UNAVAILABLE, TOO_MANY};
use crate::serve::system::no_method;

/// So much of a body is read; LINE's are far smaller.
const MAX_BODY: usize = 1 << 20;
/// So many webhooks are read at once: nobody knows who sends them before they are read.
const AT_ONCE: usize = 1024;

const UNSIGNED: Kind =
    Kind::new("line-signature", 401, "LINE's signature is missing or wrong", false);
const MALFORMED: Kind = Kind::new("line-webhook", 400, "This is no webhook of LINE's", false);

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
        return Err(later(&TOO_MANY, "too many webhooks are being read"));
    };
    let (head, body) = request.into_parts();
    let body = body::read(body, MAX_BODY, door.body_timeout).await?;
    let signature = text(&head.headers, SIGNATURE);
    let trace = text(&head.headers, TRACEPARENT).and_then(Traceparent::parse);
    match within(trace, door.gateway.receive(signature, &body)).await {
        Answer::Taken => Ok(StatusCode::OK),
        Answer::Unsigned => Err(Problem::new(
            &UNSIGNED,
            "`X-Line-Signature` is not that of this body; LINE_CHANNEL_SECRET is the secret of the \
             channel that sends it, or two of them with a comma while it is changed",
        )),
        Answer::Malformed => Err(Problem::new(
            &MALFORMED,
            "it is signed, but no JSON object with `destination` and `events`",
        )),
        Answer::Unavailable => {
            Err(later(&STORE_UNAVAILABLE, "nothing was stored or handled; deliver it again"))
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn later(kind: &'static Kind, detail: &'static str) -> Problem {
    Problem::new(kind, detail).retry_after(Duration::from_secs(1))
}

async fn no_route(request: Request) -> Problem {
    body::discard(request.into_body()).await;
    Problem::new(&NOT_FOUND, "webhooks are taken at /line/webhook")
}
