//! The webhook as a tower service, for any HTTP server.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::timeout;
use tower_service::Service;

use super::Gateway;
use crate::SIGNATURE_HEADER;

/// The largest body that is read; LINE's are far smaller.
const MAX_BODY: usize = 1 << 20;
/// The longest that reading the body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers `POST` with [`Gateway::receive`]. Made by [`Gateway::service`].
#[derive(Clone)]
pub struct WebhookService(pub(super) Gateway);

impl WebhookService {
    async fn respond<B>(self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if request.method() != Method::POST {
            let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            return response;
        }
        let (head, body) = request.into_parts();
        let signature = head.headers.get(SIGNATURE_HEADER).and_then(|value| value.to_str().ok());
        let body = match timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect()).await {
            Err(_) => return empty(StatusCode::REQUEST_TIMEOUT),
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                return empty(StatusCode::PAYLOAD_TOO_LARGE);
            }
            Ok(Err(_)) => return empty(StatusCode::BAD_REQUEST),
        };
        let status = self.0.receive(signature, &body).await;
        empty(StatusCode::from_u16(status.code()).unwrap_or_default())
    }
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

impl<B> Service<Request<B>> for WebhookService
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.respond(request).await) })
    }
}
