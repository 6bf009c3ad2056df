//! Every metric of hapax: name, labels and help in one place. No label ever identifies a person.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Declares metrics. The documentation of a metric is also its help text.
macro_rules! metrics {
    (
        counters { $($(#[doc = $counter_help:literal])+ $counter:ident = $counter_name:literal;)+ }
        gauges { $($(#[doc = $gauge_help:literal])+ $gauge:ident = $gauge_name:literal;)+ }
        seconds { $($(#[doc = $help:literal])+ $histogram:ident = $name:literal;)+ }
    ) => {
        $($(#[doc = $counter_help])+ pub const $counter: &str = $counter_name;)+
        $($(#[doc = $gauge_help])+ pub const $gauge: &str = $gauge_name;)+
        $($(#[doc = $help])+ pub const $histogram: &str = $name;)+

        /// Names of histograms, all in seconds, for exporters that want buckets.
        pub const HISTOGRAMS: &[&str] = &[$($histogram),+];

        /// Tells the installed recorder what each metric means.
        pub fn describe_metrics() {
            $(describe_counter!($counter, concat!($($counter_help),+).trim_start());)+
            $(describe_gauge!($gauge, concat!($($gauge_help),+).trim_start());)+
            $(describe_histogram!(
                $histogram, Unit::Seconds, concat!($($help),+).trim_start()
            );)+
        }
    };
}

metrics! {
    counters {
        /// Locks asked for. Labels: `status` (`acquired`, `held`, `error`; `open` in addition where work went
        /// on without one), `source_type`.
        LOCK_ACQUIRE = "processing_lock_acquire_total";
        /// Locks that another owner held. Label: `source_type`.
        LOCK_MISS = "processing_lock_miss_total";
        /// Locks given back. Labels: `status` (`released`, `lost`, `error`, `kept` for a throttle window),
        /// `source_type`.
        LOCK_RELEASE = "processing_lock_release_total";
        /// Record operations. Labels: `operation` (`get`, `put`, `delete`), `result` (`hit`, `miss`,
        /// `stored`, `deleted`, `conflict`, `error`). Error and hit rate follow from it.
        KV_OPERATIONS = "kv_operations_total";
        /// Commands asked for. Label: `result` (`granted`, `completed`, `in_progress`, `key_reused`,
        /// `outcome_unknown`, `error`).
        COMMAND_BEGIN = "hapax_command_begin_total";
        /// Commands ended. Labels: `how` (`completed`, `failed`), `result` (`done`, `lost`, `error`).
        COMMAND_END = "hapax_command_end_total";
        /// Events of LINE's webhooks. Labels: `event_type`, `result` (`accepted`, `duplicate`, `malformed`,
        /// `unprotected` where the store was away and it was handled all the same, `refused` where it was
        /// not).
        LINE_EVENTS = "hapax_line_events_total";
        /// Events of LINE that were handled. Labels: `event_type`, `result` (`done`, `busy` where its user was
        /// told to wait, `duplicate`, `failed`, `away` where the bot takes nothing and is waited for,
        /// `unknown`, `dead`).
        LINE_HANDLED = "hapax_line_handled_total";
        /// Calls to LINE. Labels: `what` (`reply`, `push`, `loading`), `result` (`accepted`, `before`,
        /// `uncertain`, `not_now`, `refused`, `not_tried`).
        LINE_SENT = "hapax_line_sent_total";
        /// Messages that an inbox was asked about. Label: `result` (`first`, `duplicate`, `in_progress`,
        /// `error`).
        INBOX_BEGIN = "hapax_inbox_begin_total";
        /// Messages that left their consumer. Labels: `how` (`settled`, `given_back`), `result` (`done`,
        /// `lost`, `error`).
        INBOX_END = "hapax_inbox_end_total";
        /// Events published. Label: `result` (`published`, `duplicate`, `conflict`, `closed`, `error`).
        BUS_PUBLISH = "hapax_bus_publish_total";
        /// Followers that were told that entries are missing: trimmed, or of another epoch.
        BUS_GAPS = "hapax_bus_gaps_total";
        /// Times that the tail showed an entry of a followed job before any hint did.
        BUS_MISSED_HINTS = "hapax_bus_missed_hints_total";
        /// Reads of followed jobs or of their tail that failed. Label: `what` (`job`, `tail`).
        BUS_READ_FAILURES = "hapax_bus_read_failures_total";
        /// Events written to event streams.
        SSE_DELIVERIES = "hapax_sse_deliveries_total";
        /// Event streams that ended. Label: `reason` (`complete`, `client`, `slow`, `expired`, `shutdown`).
        SSE_ENDED = "hapax_sse_ended_total";
        /// Events that groups consumed. Label: `result` (`handled`, `failed`, `gone` where it was forgotten
        /// before it was read, `lost` where an unknown number was).
        BUS_CONSUMED = "hapax_bus_consumed_total";
        /// Entries of workers' streams that were routed. Label: `result` (`published`, `duplicate`, `dead`).
        INGEST_ENTRIES = "hapax_ingest_entries_total";
        /// Operators' actions. Labels: `action` (`list`, `locks`, `show`, `settle`, `release`, `sweep`; of queues
        /// `queues`, `depth`, `dead`, `requeue`, `discard`), `result` (`done`, or the code of the problem that was
        /// answered).
        OPERATOR_ACTIONS = "hapax_operator_actions_total";
        /// Store calls that failed. Label: `reason`.
        STORE_ERRORS = "hapax_store_errors_total";
        /// Times that a clock was set by more than a second. Label: `clock` (`node` for this machine, which
        /// decides no lease; `store` for the server of a Redis or PostgreSQL store, whose leases end early or
        /// late then).
        CLOCK_JUMPS = "hapax_clock_jumps_total";
        /// Requests with an `Idempotency-Key`, by what happened to them. Label: `event`.
        IDEMPOTENCY = "hapax_idempotency_total";
        /// Upstreams that gave the proxy no answer. Labels: `route`, `reason` (`unreachable`, `cut`,
        /// `timeout`).
        UPSTREAM_FAILURES = "hapax_proxy_upstream_failures_total";
        /// Log lines that were dropped, because nobody read standard error in time.
        LOG_DROPPED = "hapax_log_lines_dropped_total";
        /// Expired rows that were swept.
        SWEPT = "hapax_swept_total";
        /// HTTP requests. Labels: `route`, `method`, `status`.
        HTTP_REQUESTS = "hapax_http_requests_total";
        /// Rows that a relay sent. Labels: `sink`, `result` (`delivered`, `refused`, `rejected` where the sink
        /// takes nothing now, `unanswered`, `cut`, `unreachable`).
        RELAY_SENT = "hapax_relay_sent_total";
        /// Outcomes of rows that a relay wrote to the store. Labels: `outcome` (`acked`, `retried`, `handed_back`,
        /// `buried`), `result` (`done`, `lost`, `error`).
        RELAY_RESOLVED = "hapax_relay_resolved_total";
        /// Messages that a consumer received. Labels: `source`, `result` (`done`, `duplicate`, `busy`,
        /// `retried`, `dead`, `error`, `lost` where it was trimmed before it was handled).
        CONSUMED = "hapax_consumed_total";
    }
    gauges {
        /// How long ago the tail of the followed jobs was read to its end; 0 while no job is followed.
        BUS_TAIL_AGE = "hapax_bus_tail_age_seconds";
        /// Event streams that are open now.
        SSE_CONNECTIONS = "hapax_sse_connections";
        /// Partitions that this process has of a group. Label: `group`.
        BUS_CONSUMER_PARTITIONS = "hapax_bus_consumer_partitions";
        /// Entries of a workers' stream that the router has not seen yet. Label: `stream`.
        INGEST_LAG = "hapax_ingest_lag";
        /// Entries of a workers' stream that are being routed, or wait to be taken over. Label: `stream`.
        INGEST_PENDING = "hapax_ingest_pending";
        /// Entries of a workers' stream that were trimmed before they were routed. Label: `stream`.
        INGEST_LOST = "hapax_ingest_trimmed_unread";
        /// HTTP requests being answered now.
        HTTP_IN_FLIGHT = "hapax_http_in_flight";
        /// 1 while the store answers, 0 while it does not.
        STORE_UP = "hapax_store_up";
        /// Items that wait in a queue, of all tenants. Beyond 100,000 an estimate on SQLite and PostgreSQL. Label: `queue`.
        QUEUE_DEPTH = "hapax_queue_depth";
        /// Items of a queue that are leased. Beyond 100,000 an estimate on SQLite. Label: `queue`.
        QUEUE_IN_FLIGHT = "hapax_queue_in_flight";
        /// Dead letters of a queue, which wait for an operator. Beyond 100,000 an estimate on SQLite. Label: `queue`.
        QUEUE_DEAD = "hapax_queue_dead";
        /// The age of the oldest item of a queue that waits or is leased; 0 without one. Label: `queue`.
        QUEUE_OLDEST = "hapax_queue_oldest_seconds";
        /// Commands that are not completed, of all tenants. Label: `state` (`pending`, `unknown`, which needs an
        /// operator, `failed`). Not on Redis; in memory not a number, or missing, beyond 20,000 claims.
        COMMANDS = "hapax_commands";
        /// Locks that are held, of all tenants. Not on Redis; in memory not a number, or missing, beyond 20,000 claims.
        LOCKS_HELD = "hapax_locks_held";
        /// 1 for each refusal of the store that `--accept-risk` accepts. Label: `check`.
        ACCEPTED_RISK = "hapax_accepted_risk";
        /// Rows on their way to the sink now. Label: `sink`.
        RELAY_IN_FLIGHT = "hapax_relay_in_flight";
        /// 1 while the sink answers, 0 while the relay waits for it. Label: `sink`.
        RELAY_SINK_UP = "hapax_relay_sink_up";
        /// 1 while the bot takes LINE's events, 0 while the gateway waits for it.
        LINE_BOT_UP = "hapax_line_bot_up";
    }
    seconds {
        /// How long a guard of the library held its lock. Label: `event_type`.
        LOCK_HELD = "processing_duration_seconds";
        /// Reading a record.
        KV_GET = "kv_get_latency";
        /// Writing or deleting a record.
        KV_SET = "kv_set_latency";
        /// From a webhook's arrival to its answer. Label: `status`.
        LINE_WEBHOOK = "hapax_line_webhook_seconds";
        /// From a request with an `Idempotency-Key` to the head of its answer. Label: `outcome`
        /// (the event that answered it).
        IDEMPOTENCY_LATENCY = "hapax_idempotency_seconds";
        /// Answering an HTTP request. Label: `route`.
        HTTP_LATENCY = "hapax_http_request_seconds";
        /// Sending one row to its acknowledgement. Label: `sink`.
        RELAY_SEND = "hapax_relay_send_seconds";
        /// From the enqueueing of a row to its delivery. Label: `sink`.
        RELAY_LAG = "hapax_relay_lag_seconds";
    }
}

/// Upper bounds of the buckets, in seconds: from a memory look-up to a slow upstream.
pub const BUCKETS: &[f64] = &[
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];

/// The counters that alerts watch, each with a label and its values; a counter without a label has none.
const FROM_ZERO: &[(&str, &str, &[&str])] = &[
    (COMMAND_BEGIN, "result", &["granted", "completed", "in_progress", "outcome_unknown", "error"]),
    (INBOX_BEGIN, "result", &["first", "duplicate", "in_progress", "error"]),
    (BUS_PUBLISH, "result", &["published", "duplicate", "conflict", "closed", "error"]),
    (BUS_READ_FAILURES, "what", &["job", "tail"]),
    (SSE_ENDED, "reason", &["complete", "client", "slow", "expired", "shutdown"]),
    (INGEST_ENTRIES, "result", &["published", "duplicate", "dead"]),
    (
        STORE_ERRORS,
        "reason",
        &[
            "unavailable",
            "timeout",
            "full",
            "read_only",
            "locked",
            "refused",
            "corrupt",
            "internal",
        ],
    ),
];

/// Starts what alerts and dashboards watch at 0. A counter that begins with its first event makes `rate()` and
/// `increase()` miss that event, and an alert on a gauge that is absent is silent.
pub fn start_at_zero() {
    for (name, label, values) in FROM_ZERO {
        for value in *values {
            metrics::counter!(*name, *label => *value).increment(0);
        }
    }
    for name in [BUS_GAPS, BUS_MISSED_HINTS, SSE_DELIVERIES, LOG_DROPPED, SWEPT] {
        metrics::counter!(name).increment(0);
    }
    for name in [BUS_TAIL_AGE, SSE_CONNECTIONS] {
        metrics::gauge!(name).increment(0.0);
    }
    for outcome in ["acked", "retried", "handed_back", "buried"] {
        metrics::counter!(RELAY_RESOLVED, "outcome" => outcome, "result" => "done").increment(0);
    }
    for result in ["done", "failed", "unknown", "dead"] {
        metrics::counter!(LINE_HANDLED, "event_type" => "message", "result" => result).increment(0);
    }
    for result in ["accepted", "unprotected", "refused"] {
        metrics::counter!(LINE_EVENTS, "event_type" => "message", "result" => result).increment(0);
    }
}

/// Counts a store call that failed.
pub fn count_store_error(error: &crate::StoreError) {
    metrics::counter!(STORE_ERRORS, "reason" => error.label()).increment(1);
}
