//! Finds the route of a request, and counts the request until the end of its response.

use std::sync::Arc;
use std::time::Duration;

use hapax::Claims;
use hapax_http::{FullBody, Idempotency, IdempotencyLayer, Problem, ProblemKind, ResponseBody};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, Version};
use tower::{Layer, ServiceExt};

use super::Client;
use super::cors::CorsReader;
use super::idle_timeout::IdleTimeoutBody;
use super::route::{PathPattern, ProxyRoute, path};
use super::upstream_body::UpstreamBody;
use super::upstream_service::{ForwardOptions, UpstreamService};
use crate::daemon::{GuardedBody, InFlightGuard, RequestHandler, RequestMetrics};
use crate::settings::AllowedOrigins;

/// All routes of the proxy, each with its policy and its upstream.
#[derive(Clone)]
pub(crate) struct ProxyRouter(Arc<Inner>);

struct Inner {
    routes: Vec<RouteService>,
    body_timeout: Duration,
    cors_origins: AllowedOrigins,
}

struct RouteService {
    pattern: PathPattern,
    label: Arc<str>,
    layer: IdempotencyLayer,
    service: Idempotency<UpstreamService>,
}

impl ProxyRouter {
    pub(crate) fn new(
        routes: &[ProxyRoute],
        store: &Arc<dyn Claims>,
        client: &Client,
        options: ForwardOptions,
        body_timeout: Duration,
        cors_origins: AllowedOrigins,
    ) -> Self {
        let with_service = |route: &ProxyRoute| {
            let layer = IdempotencyLayer::new(store.clone()).with_config(route.policy.clone());
            let service = layer.layer(UpstreamService::new(client.clone(), options, route));
            RouteService {
                pattern: route.pattern.clone(),
                label: route.pattern.to_string().into(),
                layer,
                service,
            }
        };
        let routes = routes.iter().map(with_service).collect();
        Self(Arc::new(Inner { routes, body_timeout, cors_origins }))
    }

    /// Refuses new keyed requests, and completes when every first run is stored.
    pub(crate) async fn drain(&self) {
        let drains: Vec<_> = self.0.routes.iter().map(|route| route.layer.drain()).collect();
        for drain in drains {
            drain.await;
        }
    }
}

impl RequestHandler for ProxyRouter {
    type Body = ProxyResponseBody;

    async fn handle(
        &self,
        request: Request<Incoming>,
        in_flight: InFlightGuard,
    ) -> Response<ProxyResponseBody> {
        let route = self.0.route_of(request.uri().path());
        let label = route.map_or_else(|| "unmatched".into(), |route| route.label.clone());
        let mut metrics = RequestMetrics::new(request.method(), label);
        let cors_reader = CorsReader::of(&self.0.cors_origins, request.headers());
        let checked = check_request(&request)
            .and_then(|()| self.0.check_path(request.uri().path()))
            .and_then(|()| route.ok_or_else(no_route));
        let mut response = match checked {
            Err(problem) => refuse(&problem),
            Ok(route) => {
                let request =
                    request.map(|body| IdleTimeoutBody::new(body, Some(self.0.body_timeout)));
                let response = route.service.clone().oneshot(request).await;
                response.unwrap_or_else(|never| match never {}).map(Either::Left)
            }
        };
        metrics.status = response.status().as_u16();
        name_no_unknown_reason(&mut response);
        if let Some(reader) = cors_reader {
            reader.allow(&mut response);
        }
        response.map(|body| GuardedBody::new(body, (metrics, in_flight)))
    }
}

/// Leaves the reason of an unregistered status empty where the upstream gave none, as in a replay: the
/// HTTP library would write `<none>`.
fn name_no_unknown_reason<B>(response: &mut Response<B>) {
    let extensions = response.extensions();
    if response.status().canonical_reason().is_none() && extensions.get::<ReasonPhrase>().is_none()
    {
        response.extensions_mut().insert(ReasonPhrase::from_static(b""));
    }
}

impl Inner {
    fn route_of(&self, path: &str) -> Option<&RouteService> {
        self.routes.iter().find(|route| route.pattern.matches(path))
    }

    /// Refuses a path that belongs to another route once the upstream has normalised it, or that
    /// leaves the root: it would escape its route's policy, or the base path of its upstream.
    fn check_path(&self, path: &str) -> Result<(), Problem> {
        if !path::may_be_normalised(path) {
            return Ok(());
        }
        let label = |path: &str| self.route_of(path).map(|route| route.label.clone());
        let same = |read: Option<String>| read.is_some_and(|read| label(&read) == label(path));
        if same(path::normalised(path)) && same(path::liberal(path)) {
            return Ok(());
        }
        Err(Problem::invalid(
            "the path is not in its normal form (RFC 3986, 6.2.2), and means another one to a \
             service that normalises it; send that one; nothing was run",
        ))
    }
}

/// Refuses a request that the upstream could read in another way, and CONNECT.
fn check_request(request: &Request<Incoming>) -> Result<(), Problem> {
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
    if request.uri().authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(Problem::invalid(
            "the target has a user or a password; send Authorization instead; nothing was run",
        ));
    }
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err(Problem::invalid("Transfer-Encoding takes chunked alone; nothing was run"));
    }
    if request.method() == Method::CONNECT {
        let text = "CONNECT is not taken; send requests as to the service itself";
        return Err(Problem::new(ProblemKind::MethodNotAllowed, text));
    }
    Ok(())
}

fn is_authority(host: &HeaderValue) -> bool {
    let text = host.to_str().unwrap_or("@");
    text.is_empty() || !text.contains('@') && text.parse::<Authority>().is_ok()
}

fn no_route() -> Problem {
    let text = "no [[proxy.route]] matches it, and there is no --upstream for everything else";
    Problem::new(ProblemKind::NoRoute, text)
}

/// The request counts as in flight until the end of its response.
type ProxyResponseBody = GuardedBody<EitherBody, (RequestMetrics, InFlightGuard)>;
type EitherBody = Either<ResponseBody<UpstreamBody>, FullBody>;

fn refuse(problem: &Problem) -> Response<EitherBody> {
    problem.response().map(Either::Right)
}
