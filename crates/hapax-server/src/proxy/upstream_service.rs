//! The service behind the proxy, as a tower service.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hapax::OnUnknown;
use hapax_http::Problem;
use hapax_http_client::ConnectionWatch;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Request, Response, StatusCode, Version};
use tower::Service;

use super::Client;
use super::forward::{self, IdentityHeaders};
use super::idle_timeout::{IdleTimeoutBody, UploadProgress, UpstreamIdleTimer, is_idle};
use super::route::ProxyRoute;
use super::tunnel::Upgrade;
use super::upstream_body::UpstreamBody;
use super::upstream_failure::{UpstreamFailure, problem_response};
use crate::daemon::Peer;
use crate::settings::{HostPolicy, UpstreamUrl};

/// A request's body as the layer passes it on.
pub(crate) type ProxiedBody = hapax_http::RequestBody<IdleTimeoutBody<Incoming>>;

/// The upstream of one route.
#[derive(Clone)]
pub(crate) struct UpstreamService(Arc<Inner>);

struct Inner {
    client: Client,
    options: ForwardOptions,
    target: UpstreamUrl,
    identity: Arc<IdentityHeaders>,
    route: String,
    timeout: Duration,
    reruns: bool,
}

/// How requests are forwarded, the same for all upstreams of a proxy.
#[derive(Clone, Copy)]
pub(crate) struct ForwardOptions {
    pub(crate) http2: bool,
    pub(crate) host: HostPolicy,
    pub(crate) trust_forwarded: bool,
    pub(crate) tunnel_idle: Duration,
}

impl UpstreamService {
    pub(crate) fn new(client: Client, options: ForwardOptions, route: &ProxyRoute) -> Self {
        Self(Arc::new(Inner {
            client,
            options,
            target: route.target.clone(),
            identity: Arc::new(IdentityHeaders::of(&route.policy)),
            route: route.pattern.to_string(),
            timeout: route.upstream_timeout,
            reruns: *route.policy.on_unknown() == OnUnknown::TakeOver,
        }))
    }
}

impl Service<Request<ProxiedBody>> for UpstreamService {
    type Response = Response<UpstreamBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ProxiedBody>) -> Self::Future {
        let this = self.0.clone();
        Box::pin(async move { Ok(this.forward(request).await) })
    }
}

/// The authority that a request is for: the target's, where it has one, else `Host` (RFC 9112,
/// 3.2.2), which the router has checked.
fn requested_host(parts: &Parts) -> Option<HeaderValue> {
    let host = || parts.headers.get(HOST).filter(|host| !host.is_empty()).cloned();
    let of_target = |authority: &Authority| HeaderValue::try_from(authority.as_str()).ok();
    parts.uri.authority().map_or_else(host, of_target)
}

impl Inner {
    async fn forward(&self, request: Request<ProxiedBody>) -> Response<UpstreamBody> {
        // Set by the layer, which strips it from what clients send.
        let keyed = request.headers().contains_key("hapax-attempt");
        let (mut parts, body) = request.into_parts();
        let upgrade =
            if keyed || self.options.http2 { None } else { Upgrade::requested(&mut parts) };
        let Some(uri) = self.target.resolve(&parts.uri) else {
            return problem_response(&no_path());
        };
        self.rewrite_headers(&mut parts, body.size_hint().exact(), upgrade.as_ref());
        let (body, idle_timer) = UploadProgress::new(body, self.identity.clone());
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = parts.headers;
        let outcome = match self.send(request, keyed, &idle_timer).await {
            Ok(response) => self.map_response(response, keyed, upgrade).await,
            Err(failure) => match idle_timer.client_fault() {
                Some(fault) => return fault.response(&self.route),
                None => Err(failure),
            },
        };
        outcome.unwrap_or_else(|failure| failure.response(&self.route, keyed, self.reruns))
    }

    /// Watching the connection costs an allocation and several locks, and a request without a key is not claimed: where
    /// it takes longer to connect than the upstream may take, the client is told that it may have run.
    async fn send(
        &self,
        mut request: Request<UploadProgress<ProxiedBody>>,
        keyed: bool,
        idle_timer: &UpstreamIdleTimer,
    ) -> Result<Response<Incoming>, UpstreamFailure> {
        let connection = keyed.then(|| ConnectionWatch::new(&mut request));
        tokio::select! {
            biased;
            response = self.client.request(request) => {
                response.map_err(|error| UpstreamFailure::from_client_error(&error))
            }
            () = idle_timer.idle_for(self.timeout) => {
                Err(if connection.is_none_or(|connection| connection.may_have_sent()) {
                    UpstreamFailure::TimedOut
                } else {
                    UpstreamFailure::Unreachable
                })
            }
        }
    }

    fn rewrite_headers(&self, parts: &mut Parts, length: Option<u64>, upgrade: Option<&Upgrade>) {
        let host = requested_host(parts);
        let peer = parts.extensions.get::<Peer>().copied();
        let headers = &mut parts.headers;
        forward::strip_request(headers, self.options.http2, &self.identity);
        forward::remove_other_spellings(headers, &self.identity);
        if !self.options.http2 {
            forward::join_cookies(headers);
        }
        forward::set_length(headers, length);
        if let Some(peer) = peer {
            forward::set_origin(headers, peer, host.as_ref(), self.options.trust_forwarded);
        }
        // In HTTP/2 the authority is the upstream's own, by which the connection is chosen.
        headers.remove(HOST);
        if self.options.host == HostPolicy::Keep
            && !self.options.http2
            && let Some(host) = host
        {
            headers.insert(HOST, host);
        }
        if let Some(upgrade) = upgrade {
            upgrade.add_headers(headers);
        }
    }

    async fn map_response(
        &self,
        mut response: Response<Incoming>,
        keyed: bool,
        upgrade: Option<Upgrade>,
    ) -> Result<Response<UpstreamBody>, UpstreamFailure> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Without an upgrade in the request, the rest of the connection is not HTTP.
            let upgrade = upgrade.ok_or(UpstreamFailure::Cut)?;
            forward::strip_connection(response.headers_mut(), &IdentityHeaders::default());
            upgrade.add_headers(response.headers_mut());
            upgrade.connect(&mut response, self.options.tunnel_idle);
            return Ok(response.map(|_| UpstreamBody::full(Default::default())));
        }
        *response.version_mut() = Version::HTTP_11;
        forward::strip_connection(response.headers_mut(), &IdentityHeaders::default());
        let (mut parts, body) = response.into_parts();
        if body.size_hint().exact().is_none() {
            // The header would not match the bytes that are sent.
            parts.headers.remove(CONTENT_LENGTH);
        }
        // An event stream may be idle for as long as it likes.
        let timeout = (!is_event_stream(&parts.headers)).then_some(self.timeout);
        let mut body = UpstreamBody::streamed(IdleTimeoutBody::new(body, timeout));
        if keyed {
            body = body.buffer_if_small().await.map_err(|error| body_failure(&*error))?;
        }
        Ok(Response::from_parts(parts, body))
    }
}

fn body_failure(error: &(dyn std::error::Error + 'static)) -> UpstreamFailure {
    if is_idle(error) { UpstreamFailure::TimedOut } else { UpstreamFailure::Cut }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.to_ascii_lowercase().starts_with(b"text/event-stream")
}

fn no_path() -> Problem {
    Problem::invalid("a target such as /orders or http://host/orders is expected; nothing was run")
}
