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
/// Events of LINE's webhooks. Labels: `event_type`, `result` (`accepted`, `duplicate`, `malformed`,
/// `unprotected` where the store was away and it was handled all the same, `refused` where it was
/// not).
pub const LINE_EVENTS: &str = "hapax_line_events_total";
/// Events of LINE that were handled. Labels: `event_type`, `result` (`done`, `busy` where its user was
/// told to wait, `duplicate`, `failed`, `unknown`, `dead`).
pub const LINE_HANDLED: &str = "hapax_line_handled_total";
/// What was sent to LINE. Labels: `what` (`reply`, `push`, `loading`), `result` (`accepted`, `before`,
/// `uncertain`, `not_now`, `refused`, `not_tried`).
pub const LINE_SENT: &str = "hapax_line_sent_total";
/// From a webhook's arrival to its answer, in seconds. Label: `status`.
pub const LINE_WEBHOOK: &str = "hapax_line_webhook_seconds";
/// Messages that an inbox was asked about. Label: `result` (`first`, `duplicate`, `in_progress`,
/// `error`).
pub const INBOX_BEGIN: &str = "hapax_inbox_begin_total";
/// Messages that left their consumer. Labels: `how` (`settled`, `given_back`), `result` (`done`,
/// `lost`, `error`).
pub const INBOX_END: &str = "hapax_inbox_end_total";
/// Events published. Label: `result` (`published`, `duplicate`, `conflict`, `closed`, `error`).
pub const BUS_PUBLISH: &str = "hapax_bus_publish_total";
/// Followers who were told that entries are missing: trimmed, or of another epoch.
pub const BUS_GAPS: &str = "hapax_bus_gaps_total";
/// Times that the tail showed an entry of a followed job before any hint did.
pub const BUS_MISSED_HINTS: &str = "hapax_bus_missed_hints_total";
/// Reads of followed jobs or of their tail that failed. Label: `what` (`job`, `tail`).
pub const BUS_READ_FAILURES: &str = "hapax_bus_read_failures_total";
/// How long ago the tail of the followed jobs was read to its end; 0 while nobody follows any.
pub const BUS_TAIL_AGE: &str = "hapax_bus_tail_age_seconds";
/// Event streams that are open now.
pub const SSE_CONNECTIONS: &str = "hapax_sse_connections";
/// Events written to event streams.
pub const SSE_DELIVERIES: &str = "hapax_sse_deliveries_total";
/// Event streams that ended. Label: `reason` (`complete`, `client`, `slow`, `expired`, `shutdown`).
pub const SSE_ENDED: &str = "hapax_sse_ended_total";
/// Events that groups consumed. Label: `result` (`handled`, `failed`, `gone` where it was forgotten
/// before it was read, `lost` where nobody knows how many were).
pub const BUS_CONSUMED: &str = "hapax_bus_consumed_total";
/// Partitions that this process has of a group. Label: `group`.
pub const BUS_CONSUMER_PARTITIONS: &str = "hapax_bus_consumer_partitions";
/// Entries of workers' streams that were routed. Label: `result` (`published`, `duplicate`, `dead`).
pub const INGEST_ENTRIES: &str = "hapax_ingest_entries_total";
/// Entries of a workers' stream that the router has not seen yet. Label: `stream`.
pub const INGEST_LAG: &str = "hapax_ingest_lag";
/// Entries of a workers' stream that are being routed, or wait to be taken over. Label: `stream`.
pub const INGEST_PENDING: &str = "hapax_ingest_pending";
/// Entries of a workers' stream that were trimmed before they were routed. Label: `stream`.
pub const INGEST_LOST: &str = "hapax_ingest_trimmed_unread";
/// What operators did. Labels: `action` (`list`, `show`, `settle`, `release`, `sweep`; of queues
/// `depth`, `dead`, `requeue`, `discard`), `result` (`done`, or the code of the problem that was
/// answered).
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
/// Rows that a relay sent. Labels: `sink`, `result` (`delivered`, `refused`, `unanswered`, `cut`,
/// `unreachable`).
pub const RELAY_SENT: &str = "hapax_relay_sent_total";
/// What a relay told the store about rows. Labels: `outcome` (`acked`, `retried`, `handed_back`,
/// `buried`), `result` (`done`, `lost`, `error`).
pub const RELAY_RESOLVED: &str = "hapax_relay_resolved_total";
/// Sending one row to its acknowledgement, in seconds. Label: `sink`.
pub const RELAY_SEND: &str = "hapax_relay_send_seconds";
/// From the enqueueing of a row to its delivery, in seconds. Label: `sink`.
pub const RELAY_LAG: &str = "hapax_relay_lag_seconds";
/// Rows on their way to the sink now. Label: `sink`.
pub const RELAY_IN_FLIGHT: &str = "hapax_relay_in_flight";
/// 1 while the sink answers, 0 while the relay waits for it. Label: `sink`.
pub const RELAY_SINK_UP: &str = "hapax_relay_sink_up";
/// Messages that a consumer received. Labels: `source`, `result` (`done`, `duplicate`, `busy`,
/// `retried`, `dead`, `error`).
pub const CONSUMED: &str = "hapax_consumed_total";

/// Names of histograms, all in seconds, for exporters that want buckets.
pub const HISTOGRAMS: &[&str] = &[
    LOCK_HELD,
    KV_GET,
    KV_SET,
    IDEMPOTENCY_LATENCY,
    HTTP_LATENCY,
    LINE_WEBHOOK,
    RELAY_SEND,
    RELAY_LAG,
];

/// Upper bounds of the buckets, in seconds: from a memory look-up to a slow upstream.
pub const BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// Tells the installed recorder what each metric means.
pub fn describe_metrics() {
    describe_counter!(LOCK_ACQUIRE, "Locks asked for, by status and source type");
    describe_counter!(LOCK_MISS, "Locks that somebody else held");
    describe_counter!(LOCK_RELEASE, "Locks given back, by status");
    describe_histogram!(LOCK_HELD, Unit::Seconds, "How long a lock was held");
    describe_histogram!(KV_GET, Unit::Seconds, "Reading a record");
    describe_histogram!(KV_SET, Unit::Seconds, "Writing or deleting a record");
    describe_counter!(KV_OPERATIONS, "Record operations, by operation and result");
    describe_counter!(COMMAND_BEGIN, "Commands asked for, by result");
    describe_counter!(COMMAND_END, "Commands ended, by how and result");
    describe_counter!(LINE_EVENTS, "Events of LINE's webhooks, by event_type and result");
    describe_counter!(LINE_HANDLED, "Events of LINE that were handled, by event_type and result");
    describe_counter!(LINE_SENT, "What was sent to LINE, by what and result");
    describe_histogram!(
        LINE_WEBHOOK,
        Unit::Seconds,
        "From a webhook's arrival to its answer, by status"
    );
    describe_counter!(INBOX_BEGIN, "Messages that an inbox was asked about, by result");
    describe_counter!(INBOX_END, "Messages that left their consumer, by how and result");
    describe_counter!(BUS_PUBLISH, "Events published, by result");
    describe_counter!(BUS_GAPS, "Followers who were told that entries are missing");
    describe_counter!(BUS_MISSED_HINTS, "Times that the tail showed an entry before any hint did");
    describe_counter!(BUS_READ_FAILURES, "Reads of followed jobs or of their tail that failed");
    describe_gauge!(BUS_TAIL_AGE, "How long ago the tail of the followed jobs was read");
    describe_gauge!(SSE_CONNECTIONS, "Event streams that are open now");
    describe_counter!(SSE_DELIVERIES, "Events written to event streams");
    describe_counter!(SSE_ENDED, "Event streams that ended, by reason");
    describe_counter!(BUS_CONSUMED, "Events that groups consumed, by result");
    describe_gauge!(BUS_CONSUMER_PARTITIONS, "Partitions that this process has, by group");
    describe_counter!(INGEST_ENTRIES, "Entries of workers' streams that were routed, by result");
    describe_gauge!(INGEST_LAG, "Entries that the router has not seen yet, by stream");
    describe_gauge!(INGEST_PENDING, "Entries that are being routed, by stream");
    describe_gauge!(INGEST_LOST, "Entries that were trimmed before they were routed, by stream");
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
    describe_counter!(RELAY_SENT, "Rows that a relay sent, by sink and result");
    describe_counter!(RELAY_RESOLVED, "What a relay told the store, by outcome and result");
    describe_histogram!(RELAY_SEND, Unit::Seconds, "Sending one row to its acknowledgement");
    describe_histogram!(RELAY_LAG, Unit::Seconds, "From a row's enqueueing to its delivery");
    describe_gauge!(RELAY_IN_FLIGHT, "Rows on their way to the sink now");
    describe_gauge!(RELAY_SINK_UP, "1 while the sink answers");
    describe_counter!(CONSUMED, "Messages that a consumer received, by source and result");
    describe_gauge!(HTTP_IN_FLIGHT, "HTTP requests being answered now");
    describe_gauge!(STORE_UP, "1 while the store answers");
}

/// Counts a store call that failed.
pub fn count_store_error(error: &crate::StoreError) {
    metrics::counter!(STORE_ERRORS, "reason" => error.label()).increment(1);
}
