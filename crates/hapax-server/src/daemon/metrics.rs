//! The Prometheus recorder, and the metrics and the log line of each request.

use std::sync::{Arc, LazyLock};

use hapax::metric_names;
use hyper::Method;
use metrics::{Gauge, counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::time::Instant;

pub(super) fn start() -> anyhow::Result<PrometheusHandle> {
    let builder =
        metric_names::HISTOGRAMS.iter().try_fold(PrometheusBuilder::new(), |builder, name| {
            builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), metric_names::BUCKETS)
        })?;
    let handle = builder.install_recorder()?;
    metric_names::describe_metrics();
    metric_names::start_at_zero();
    Ok(handle)
}

/// The log line and the metrics of a request, written when this is dropped, so also when the client
/// goes away. They name the route alone: paths, queries and bodies identify people.
pub(crate) struct RequestMetrics {
    method: &'static str,
    route: Arc<str>,
    pub(crate) status: u16,
    /// Identifies the request in the log.
    pub(crate) id: Option<String>,
    pub(crate) tenant: Option<String>,
    since: Instant,
}

/// The requests in flight, looked up once for all requests. A daemon installs its recorder before it takes the first
/// one, and never replaces it.
static IN_FLIGHT: LazyLock<Gauge> = LazyLock::new(|| gauge!(metric_names::HTTP_IN_FLIGHT));

/// The status of a request whose client went away, as other servers log it.
const CLIENT_GONE: u16 = 499;

impl RequestMetrics {
    pub(crate) fn new(method: &Method, route: Arc<str>) -> Self {
        IN_FLIGHT.increment(1.0);
        let (method, since) = (method_label(method), Instant::now());
        Self { method, route, status: CLIENT_GONE, id: None, tenant: None, since }
    }
}

impl Drop for RequestMetrics {
    fn drop(&mut self) {
        let Self { method, route, status, .. } = self;
        let (took, status) = (self.since.elapsed(), *status);
        let (id, tenant) = (self.id.as_deref(), self.tenant.as_deref());
        let ms = took.as_micros() as f64 / 1000.0;
        IN_FLIGHT.decrement(1.0);
        histogram!(metric_names::HTTP_LATENCY, "route" => route.clone()).record(took);
        counter!(metric_names::HTTP_REQUESTS, "route" => route.clone(), "method" => *method,
            "status" => status.to_string())
        .increment(1);
        tracing::info!(method, route = &**route, status, ms, id, tenant, "request");
    }
}

/// A bounded set of labels: clients may send any method.
fn method_label(method: &Method) -> &'static str {
    let labels = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    labels.into_iter().find(|label| method == *label).unwrap_or("OTHER")
}
