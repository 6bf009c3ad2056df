//! The webhook as a service of the bot's own HTTP server.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_line::SIGNATURE_HEADER;
use hapax_line::simulator::events;
use http_body_util::Full;
use hyper::body::{Body, Frame};
use hyper::{Request, StatusCode};
use serde_json::json;
use tower_service::Service;

use crate::gateway::setup::{Setup, USER, secrets};

/// A body that sends at most one chunk and never ends.
struct Stuck(Option<Bytes>);

impl Body for Stuck {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |begin| Poll::Ready(Some(Ok(Frame::data(begin)))))
    }
}

async fn answer<B>(body: B, signature: &str) -> StatusCode
where
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let idle = Setup::new().await.idle();
    let request =
        Request::post("/line/webhook").header(SIGNATURE_HEADER, signature).body(body).unwrap();
    idle.gateway.service().call(request).await.unwrap().status()
}

/// The paused clock advances when every task waits for it, so ten seconds take no time.
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_given_up() {
    let body = json!({ "destination": "Uf00dbot", "events": [events::text(USER, "🥚")] });
    let body = Bytes::from(body.to_string());
    let signature = secrets("secret").sign(&body);
    assert_eq!(answer(Stuck(None), &signature).await, StatusCode::REQUEST_TIMEOUT);
    // The same for a body whose bytes all arrived, but not its end.
    assert_eq!(answer(Stuck(Some(body.clone())), &signature).await, StatusCode::REQUEST_TIMEOUT);
    assert_eq!(answer(Full::new(body), &signature).await, StatusCode::OK);
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let long = Bytes::from(vec![b' '; (1 << 20) + 1]);
    let signature = secrets("secret").sign(&long);
    assert_eq!(answer(Full::new(long.clone()), &signature).await, StatusCode::PAYLOAD_TOO_LARGE);
    // A body of the greatest permitted length, which is not a webhook.
    let (most, last) = (long.slice(1..), &secrets("secret").sign(&long[1..]));
    assert_eq!(answer(Full::new(most), last).await, StatusCode::BAD_REQUEST);
}
