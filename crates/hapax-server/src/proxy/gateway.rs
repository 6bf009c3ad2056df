//! One request from its head to the last byte of its answer: which route takes it, and what is
//! counted about it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax::Claims;
use hapax_http::{Answer, Idempotency, IdempotencyLayer, Problem, ProblemKind, Whole};
use http_body_util::Either;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, Version};
use tower::{Layer, ServiceExt};

use super::BoxError;
use super::answer::Arriving;
use super::client::Client;
use super::quiet::Quiet;
use super::route::{PathPattern, ProxyRoute};
use super::upstream::{Manner, Upstream};
use crate::daemon::RequestMetrics;
use crate::daemon::{EarlyRefusals, InFlightGuard, RequestHandler};

/// Every route with its policy and its upstream.
#[derive(Clone)]
pub(crate) struct Gateway(Arc<Inner>);

struct Inner {
    routes: Vec<Open>,
    body_timeout: Duration,
}

struct Open {
    pattern: PathPattern,
    label: Arc<str>,
    layer: IdempotencyLayer,
    service: Idempotency<Upstream>,
}

impl Gateway {
    pub(crate) fn new(
        routes: &[ProxyRoute],
        store: &Arc<dyn Claims>,
        client: &Client,
        manner: Manner,
        body_timeout: Duration,
    ) -> Self {
        let open = |route: &ProxyRoute| {
            let layer = IdempotencyLayer::new(store.clone(), route.policy.clone());
            let service = layer.layer(Upstream::new(client.clone(), manner, route));
            Open {
                pattern: route.pattern.clone(),
                label: route.pattern.to_string().into(),
                layer,
                service,
            }
        };
        Self(Arc::new(Inner { routes: routes.iter().map(open).collect(), body_timeout }))
    }

    /// Refuses new work; ends when what runs is stored.
    pub(crate) async fn drain(&self) {
        let drains: Vec<_> = self.0.routes.iter().map(|route| route.layer.drain()).collect();
        for drain in drains {
            drain.await;
        }
    }
}

impl RequestHandler for Gateway {
    type Body = Outgoing;
    /// An answer without our marks may be the upstream's.
    const REFUSALS: Option<EarlyRefusals> = None;

    async fn handle(
        &self,
        request: Request<Incoming>,
        in_flight: InFlightGuard,
    ) -> Response<Outgoing> {
        let route = self.0.routes.iter().find(|route| route.pattern.matches(request.uri().path()));
        let label = route.map_or_else(|| "unmatched".into(), |route| route.label.clone());
        let mut watched = RequestMetrics::new(request.method(), label);
        let response = match (check(&request), route) {
            (Err(problem), _) => refused(&problem),
            (Ok(()), None) => refused(&no_route()),
            (Ok(()), Some(route)) => {
                let request = request.map(|body| Quiet::new(body, Some(self.0.body_timeout)));
                let response = route.service.clone().oneshot(request).await;
                response.unwrap_or_else(|never| match never {}).map(Either::Left)
            }
        };
        watched.status = response.status().as_u16();
        response.map(|body| Outgoing { body, _watched: watched, _in_flight: in_flight })
    }
}

/// Refuses what could be read in two ways, or is no request to a service.
fn check(request: &Request<Incoming>) -> Result<(), Problem> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Problem::invalid("there are several Host headers; nothing was run"));
    }
    if host.is_some_and(|host| !is_authority(host)) {
        return Err(Problem::invalid("header Host is no host; nothing was run"));
    }
    if host.is_none()
        && request.version() == Version::HTTP_11
        && request.uri().authority().is_none()
    {
        return Err(Problem::invalid("header Host is missing; nothing was run"));
    }
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err(Problem::invalid("Transfer-Encoding takes chunked alone; nothing was run"));
    }
    if request.method() == Method::CONNECT {
        return Err(Problem::new(
            ProblemKind::MethodNotAllowed,
            "CONNECT is not taken; send requests as to the service itself",
        ));
    }
    Ok(())
}

fn is_authority(host: &HeaderValue) -> bool {
    let text = host.to_str().unwrap_or("@");
    text.is_empty() || !text.contains('@') && text.parse::<Authority>().is_ok()
}

fn no_route() -> Problem {
    Problem::new(
        ProblemKind::NoRoute,
        "no [[proxy.route]] matches it, and there is no --upstream for everything else",
    )
}

type AnyAnswer = Either<Answer<Arriving>, Whole>;

fn refused(problem: &Problem) -> Response<AnyAnswer> {
    problem.response().map(Either::Right)
}

/// The body of an answer; with its end the request is over.
pub(crate) struct Outgoing {
    body: AnyAnswer,
    _watched: RequestMetrics,
    _in_flight: InFlightGuard,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
