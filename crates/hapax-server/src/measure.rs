//! What is measured, for Prometheus, and one log line for each request.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use hapax::metric_names;
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::Instant;

/// Starts measuring.
pub(crate) fn start() -> anyhow::Result<PrometheusHandle> {
    let builder =
        metric_names::HISTOGRAMS.iter().try_fold(PrometheusBuilder::new(), |builder, name| {
            builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), metric_names::BUCKETS)
        })?;
    let handle = builder.install_recorder()?;
    metric_names::describe_metrics();
    Ok(handle)
}

/// Everything that is measured.
pub(crate) fn exposition(meters: &PrometheusHandle) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], meters.render()).into_response()
}

/// One log line and three metrics for a request, when it is dropped, which is also what happens when
/// the client goes away. They say what was asked for by the route: paths, queries and bodies
/// identify people.
pub(crate) struct Watched {
    method: &'static str,
    route: Arc<str>,
    pub(crate) status: u16,
    /// Names it in the log, where it has a name.
    pub(crate) id: Option<String>,
    pub(crate) tenant: Option<String>,
    since: Instant,
}

/// The status of a request whose client went away, as other servers log it.
const CLIENT_GONE: u16 = 499;

impl Watched {
    pub(crate) fn new(method: &Method, route: Arc<str>) -> Self {
        gauge!(metric_names::HTTP_IN_FLIGHT).increment(1.0);
        let (method, since) = (known(method), Instant::now());
        Self { method, route, status: CLIENT_GONE, id: None, tenant: None, since }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Self { method, route, status, .. } = self;
        let (took, status) = (self.since.elapsed(), *status);
        let (id, tenant) = (self.id.as_deref(), self.tenant.as_deref());
        let ms = took.as_micros() as f64 / 1000.0;
        gauge!(metric_names::HTTP_IN_FLIGHT).decrement(1.0);
        histogram!(metric_names::HTTP_LATENCY, "route" => route.clone()).record(took);
        counter!(metric_names::HTTP_REQUESTS, "route" => route.clone(), "method" => *method,
            "status" => status.to_string())
        .increment(1);
        tracing::info!(method, route = &**route, status, ms, id, tenant, "request");
    }
}

/// Methods are whatever a client sends; labels are not.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "OTHER",
    }
}
