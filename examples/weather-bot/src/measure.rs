//! Prometheus metrics of the bot. No label identifies a user.

use hapax::metric_names;
use metrics::{describe_counter, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Lookups at the weather service. Label: `result` (`found`, `unknown`, `away`, `slow`,
/// `nonsense`).
pub(crate) const LOOKUPS: &str = "weather_lookups_total";
/// Duration of those lookups.
pub(crate) const LOOKUP_SECONDS: &str = "weather_lookup_seconds";

/// Installs the metrics recorder.
pub(crate) fn start() -> anyhow::Result<PrometheusHandle> {
    let histograms = metric_names::HISTOGRAMS.iter().chain([&LOOKUP_SECONDS]);
    let builder = histograms.copied().try_fold(PrometheusBuilder::new(), |builder, name| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), metric_names::BUCKETS)
    })?;
    let handle = builder.install_recorder()?;
    metric_names::describe_metrics();
    describe_counter!(LOOKUPS, "Questions to the weather service, by result");
    describe_histogram!(LOOKUP_SECONDS, "How long the weather service took, in seconds");
    Ok(handle)
}
