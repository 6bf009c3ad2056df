//! The service behind the proxy, as a tower service.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hapax::OnUnknown;
use hapax_http::Problem;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Request, Response, StatusCode, Version};
use tower::Service;

use super::answer::Arriving;
use super::client::Client;
use super::failure::{Failure, whole};
use super::forward;
use super::quiet::{Patience, Quiet, TooQuiet, Watched};
use super::route::ProxyRoute;
use super::tunnel::Upgrade;
use crate::daemon::Peer;
use crate::settings::{HostPolicy, UpstreamUrl};

/// A request's body as it comes in, and as the layer hands it on.
pub(crate) type Received = Quiet<Incoming>;
pub(crate) type Passed = hapax_http::Body<Received>;

/// One upstream under one policy.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Inner>);

struct Inner {
    client: Client,
    manner: Manner,
    target: UpstreamUrl,
    route: String,
    timeout: Duration,
    reruns: bool,
}

/// How requests reach every upstream of this proxy.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) http2: bool,
    pub(crate) host: HostPolicy,
    pub(crate) trust_forwarded: bool,
}

impl Upstream {
    pub(crate) fn new(client: Client, manner: Manner, route: &ProxyRoute) -> Self {
        Self(Arc::new(Inner {
            client,
            manner,
            target: route.target.clone(),
            route: route.pattern.to_string(),
            timeout: route.upstream_timeout,
            reruns: route.policy.on_unknown == OnUnknown::TakeOver,
        }))
    }
}

impl Service<Request<Passed>> for Upstream {
    type Response = Response<Arriving>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Passed>) -> Self::Future {
        let this = self.0.clone();
        Box::pin(async move { Ok(this.pass(request).await) })
    }
}

/// The authority that a request is for. In absolute form, and in HTTP/2, the target says so and
/// `Host` does not count (RFC 9112, 3.2.2).
pub(crate) fn asked_host(parts: &Parts) -> Option<Authority> {
    let host = || parts.headers.get(HOST)?.to_str().ok()?.parse().ok();
    parts.uri.authority().cloned().or_else(host)
}

impl Inner {
    async fn pass(&self, request: Request<Passed>) -> Response<Arriving> {
        // The layer says so, and takes away what anybody else says.
        let keyed = request.headers().contains_key("hapax-attempt");
        let (mut parts, body) = request.into_parts();
        let upgrade = if keyed || self.manner.http2 { None } else { Upgrade::asked(&mut parts) };
        let Some(uri) = self.target.resolve(&parts.uri) else { return whole(&no_path()) };
        self.rewrite(&mut parts, body.size_hint().exact(), upgrade.as_ref());
        let (body, patience) = Watched::new(body);
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = parts.headers;
        let outcome = match self.send(request, patience).await {
            Ok(response) => self.back(response, keyed, upgrade).await,
            Err(failure) => Err(failure),
        };
        outcome.unwrap_or_else(|failure| failure.response(&self.route, keyed, self.reruns))
    }

    async fn send(
        &self,
        request: Request<Watched<Passed>>,
        patience: Patience,
    ) -> Result<Response<Incoming>, Failure> {
        tokio::select! {
            biased;
            answer = self.client.request(request) => answer.map_err(|error| Failure::of(&error)),
            () = patience.end(self.timeout) => Err(Failure::Silent),
        }
    }

    fn rewrite(&self, parts: &mut Parts, length: Option<u64>, upgrade: Option<&Upgrade>) {
        let host = asked_host(parts);
        let peer = parts.extensions.get::<Peer>().copied();
        let headers = &mut parts.headers;
        forward::strip_request(headers, self.manner.http2);
        forward::set_length(headers, length);
        if let Some(peer) = peer {
            forward::set_origin(headers, peer, host.as_ref(), self.manner.trust_forwarded);
        }
        // HTTP/2 has one authority, by which the connection is chosen too: the upstream's own.
        headers.remove(HOST);
        if self.manner.host == HostPolicy::Keep
            && !self.manner.http2
            && let Some(Ok(value)) = host.map(|host| HeaderValue::try_from(host.as_str()))
        {
            headers.insert(HOST, value);
        }
        if let Some(upgrade) = upgrade {
            upgrade.say(headers);
        }
    }

    /// The answer, as it goes back.
    async fn back(
        &self,
        mut response: Response<Incoming>,
        keyed: bool,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<Arriving>, Failure> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Nobody asked for it: what follows is no HTTP any more, and there is no answer.
            let upgrade = upgrade.ok_or(Failure::Cut)?;
            forward::strip_connection(response.headers_mut());
            upgrade.say(response.headers_mut());
            upgrade.open(&mut response);
            return Ok(response.map(|_| Arriving::whole(Default::default())));
        }
        *response.version_mut() = Version::HTTP_11;
        forward::strip_connection(response.headers_mut());
        let (mut parts, body) = response.into_parts();
        if body.size_hint().exact().is_none() {
            // The length that counts is the one that was read.
            parts.headers.remove(CONTENT_LENGTH);
        }
        let limit = (!is_event_stream(&parts.headers)).then_some(self.timeout);
        let body = Arriving::live(Quiet::new(body, limit));
        let body = if keyed { body.settle().await.map_err(|e| cut(&*e))? } else { body };
        Ok(Response::from_parts(parts, body))
    }
}

fn cut(error: &(dyn std::error::Error + 'static)) -> Failure {
    if error.is::<TooQuiet>() { Failure::Silent } else { Failure::Cut }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.to_ascii_lowercase().starts_with(b"text/event-stream")
}

fn no_path() -> Problem {
    Problem::invalid("a target such as /orders or http://host/orders is expected; nothing was run")
}
