//! What operators see on the wire.

use hapax::{Key, Listed, Standing, Tenant, millis};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Some commands, and where to go on.
#[derive(Serialize, ToSchema)]
pub(crate) struct CommandList {
    /// The commands.
    pub(super) commands: Vec<ListedCommand>,
    /// What to pass as `after`; null at the end. A page may be short, and even empty, before that.
    #[schema(required)]
    pub(super) next: Option<String>,
}

/// One command of a list.
#[derive(Serialize, ToSchema)]
pub(crate) struct ListedCommand {
    /// What is done; `METHOD /path` where it came through the proxy.
    operation: String,
    /// Which one of them.
    key: String,
    /// A hash of who asked, where the key came through the proxy or the layer.
    #[schema(required)]
    scope: Option<String>,
    /// `pending`, `unknown`, `completed` or `failed`.
    #[schema(value_type = String, example = "unknown")]
    state: &'static str,
    /// Which attempt it is or was.
    attempt: u32,
    /// The fence of the last attempt.
    fence: u64,
    /// How long ago the last attempt began.
    begun_ms_ago: u64,
    /// How long it is remembered.
    expires_in_ms: u64,
}

impl ListedCommand {
    pub(super) fn new(listed: &Listed, tenant: &Tenant) -> Self {
        let Listed { key, standing, fence, attempt, granted_ago, expires_in } = listed;
        Self {
            operation: key.scope().to_owned(),
            key: key.name().to_owned(),
            scope: scope(key, tenant),
            state: word(*standing),
            attempt: *attempt,
            fence: fence.0,
            begun_ms_ago: millis(*granted_ago),
            expires_in_ms: millis(*expires_in),
        }
    }
}

fn scope(key: &Key, tenant: &Tenant) -> Option<String> {
    let scope = key.tenant().as_str().strip_prefix(tenant.as_str())?.strip_prefix('/')?;
    Some(scope.to_owned())
}

/// How a standing is called outside.
pub(super) fn word(standing: Standing) -> &'static str {
    match standing {
        Standing::Pending => "pending",
        Standing::Unknown => "unknown",
        Standing::Settled => "completed",
        Standing::Failed => "failed",
    }
}

/// The answer that an operator gives in the owner's place.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct SettleCommand {
    /// The HTTP status of the answer.
    #[schema(minimum = 200, maximum = 599)]
    status: u16,
    /// Text, or an array of texts where a header is repeated.
    #[schema(value_type = Object, required = false)]
    headers: Option<Map<String, Value>>,
    /// The body as text.
    #[schema(nullable = false)]
    body: Option<String>,
    /// The body in base64, where it is not UTF-8; one of the two at most.
    #[schema(nullable = false)]
    body_base64: Option<String>,
}

/// How much is swept.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct Sweep {
    /// How many claims and records to delete at most.
    #[schema(default = 10_000, minimum = 1, maximum = 1_000_000, nullable = false)]
    at_most: Option<u64>,
}

/// What was swept.
#[derive(Serialize, ToSchema)]
pub(crate) struct Swept {
    /// How many claims and records; 0 where nothing had expired, or the store forgets by itself.
    pub(super) swept: u64,
}
