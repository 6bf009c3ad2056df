//! The bot's own metrics. No label identifies a user.

use metrics::{describe_counter, describe_histogram};

/// Lookups at the weather service. Label: `result` (`found`, `unknown`, `away`, `slow`,
/// `nonsense`).
pub(crate) const LOOKUPS: &str = "weather_lookups_total";
/// Duration of those lookups.
pub(crate) const LOOKUP_SECONDS: &str = "weather_lookup_seconds";

/// Describes the metrics to the installed recorder.
pub(crate) fn describe() {
    describe_counter!(LOOKUPS, "Questions to the weather service, by result");
    describe_histogram!(LOOKUP_SECONDS, "How long the weather service took, in seconds");
}
