//! Every metric of hapax: name, labels and help in one place. No label ever identifies a person.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Locks asked for. Labels: `status` (`acquired`, `held`, `error`; `open` in addition where work went
/// on without one), `source_type`.
pub const LOCK_ACQUIRE: &str = "processing_lock_acquire_total";
/// Locks that somebody else held. Label: `source_type`.
pub const LOCK_MISS: &str = "processing_lock_miss_total";
/// Locks given back. Labels: `status` (`released`, `lost`, `error`, `kept` for a throttle window),
/// `source_type`.
pub const LOCK_RELEASE: &str = "processing_lock_release_total";
/// How long a guard of the library held its lock, in seconds. Label: `event_type`.
pub const LOCK_HELD: &str = "processing_duration_seconds";
/// Reading a record, in seconds.
pub const KV_GET: &str = "kv_get_latency";
/// Writing or deleting a record, in seconds.
pub const KV_SET: &str = "kv_set_latency";
/// Record operations. Labels: `operation` (`get`, `put`, `delete`), `result` (`hit`, `miss`,
/// `stored`, `deleted`, `conflict`, `error`). Error and hit rate follow from it.
pub const KV_OPERATIONS: &str = "kv_operations_total";
/// Commands asked for. Label: `result` (`granted`, `completed`, `in_progress`, `key_reused`,
/// `outcome_unknown`, `error`).
pub const COMMAND_BEGIN: &str = "hapax_command_begin_total";
/// Commands ended. Labels: `how` (`completed`, `failed`), `result` (`done`, `lost`, `error`).
pub const COMMAND_END: &str = "hapax_command_end_total";
/// What operators did. Labels: `action` (`list`, `show`, `settle`, `release`, `sweep`), `result`
/// (`done`, or the code of the problem that was answered).
pub const OPERATOR_ACTIONS: &str = "hapax_operator_actions_total";
/// Store calls that failed. Label: `reason`.
pub const STORE_ERRORS: &str = "hapax_store_errors_total";
/// What happened to requests with an `Idempotency-Key`. Label: `event`.
pub const IDEMPOTENCY: &str = "hapax_idempotency_total";
/// From a request with an `Idempotency-Key` to the head of its answer, in seconds. Label: `outcome`
/// (the event that answered it).
pub const IDEMPOTENCY_LATENCY: &str = "hapax_idempotency_seconds";
/// Upstreams that gave the proxy no answer. Labels: `route`, `reason` (`unreachable`, `cut`,
/// `timeout`).
pub const UPSTREAM_FAILURES: &str = "hapax_proxy_upstream_failures_total";
/// Expired claims and records that were swept.
pub const SWEPT: &str = "hapax_swept_total";
/// HTTP requests. Labels: `route`, `method`, `status`.
pub const HTTP_REQUESTS: &str = "hapax_http_requests_total";
/// Answering an HTTP request, in seconds. Label: `route`.
pub const HTTP_LATENCY: &str = "hapax_http_request_seconds";
/// HTTP requests being answered now.
pub const HTTP_IN_FLIGHT: &str = "hapax_http_in_flight";
/// 1 while the store answers, 0 while it does not.
pub const STORE_UP: &str = "hapax_store_up";

/// Names of histograms, all in seconds, for exporters that want buckets.
pub const HISTOGRAMS: &[&str] = &[LOCK_HELD, KV_GET, KV_SET, IDEMPOTENCY_LATENCY, HTTP_LATENCY];

/// Upper bounds of the buckets, in seconds: from a memory look-up to a slow upstream.
pub const BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// Tells the installed recorder what each metric means.
pub fn describe() {
    describe_counter!(LOCK_ACQUIRE, "Locks asked for, by status and source type");
    describe_counter!(LOCK_MISS, "Locks that somebody else held");
    describe_counter!(LOCK_RELEASE, "Locks given back, by status");
    describe_histogram!(LOCK_HELD, Unit::Seconds, "How long a lock was held");
    describe_histogram!(KV_GET, Unit::Seconds, "Reading a record");
    describe_histogram!(KV_SET, Unit::Seconds, "Writing or deleting a record");
    describe_counter!(KV_OPERATIONS, "Record operations, by operation and result");
    describe_counter!(COMMAND_BEGIN, "Commands asked for, by result");
    describe_counter!(COMMAND_END, "Commands ended, by how and result");
    describe_counter!(OPERATOR_ACTIONS, "What operators did, by action and result");
    describe_counter!(STORE_ERRORS, "Store calls that failed, by reason");
    describe_counter!(IDEMPOTENCY, "What happened to requests with an Idempotency-Key, by event");
    describe_histogram!(
        IDEMPOTENCY_LATENCY,
        Unit::Seconds,
        "From a request with an Idempotency-Key to the head of its answer"
    );
    describe_counter!(UPSTREAM_FAILURES, "Upstreams that gave no answer, by route and reason");
    describe_counter!(SWEPT, "Expired claims and records that were swept");
    describe_counter!(HTTP_REQUESTS, "HTTP requests, by route, method and status");
    describe_histogram!(HTTP_LATENCY, Unit::Seconds, "Answering an HTTP request");
    describe_gauge!(HTTP_IN_FLIGHT, "HTTP requests being answered now");
    describe_gauge!(STORE_UP, "1 while the store answers");
}

pub(crate) fn store_error(error: &crate::StoreError) {
    metrics::counter!(STORE_ERRORS, "reason" => error.label()).increment(1);
}
