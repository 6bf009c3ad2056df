//! How the streams are routed.

use std::time::Duration;

use crate::settings::IngestDomains;

/// How the router works.
pub(crate) struct IngestConfig {
    pub(crate) domains: IngestDomains,
    pub(crate) group: String,
    /// Who we are to the group. The same after a restart, so that our own entries come first then.
    pub(crate) consumer: String,
    /// Where each routed event is published as well; `{domain}` and `{job_id}` stand for its own.
    pub(crate) channel: Option<String>,
    /// How many times an entry is delivered before it is a dead letter.
    pub(crate) max_deliveries: u64,
    /// How long a consumer may be silent before its entries are taken over.
    pub(crate) reclaim_after: Duration,
    /// How long `{domain}:state:{job_id}` is kept.
    pub(crate) state_retention: Duration,
    /// How long a tail may stand still before the process is not ready.
    pub(crate) max_stall: Duration,
    /// The longest that one call of Redis may take.
    pub(crate) store_timeout: Duration,
}
