//! The layer's metrics. No label ever identifies a person.

/// What happened to requests with an `Idempotency-Key`. Label: `event`.
pub const EVENTS: &str = hapax_core::meters::IDEMPOTENCY;

/// Answering a request with an `Idempotency-Key`, in seconds, until the head of its answer is
/// there, the wait included. Label: `outcome`.
pub const LATENCY: &str = "hapax_idempotency_seconds";

/// Tells the installed recorder what each metric means.
pub fn describe() {
    metrics::describe_counter!(EVENTS, "Requests with an Idempotency-Key, by event");
    let help = "Answering a request with an Idempotency-Key, by outcome";
    metrics::describe_histogram!(LATENCY, metrics::Unit::Seconds, help);
}
