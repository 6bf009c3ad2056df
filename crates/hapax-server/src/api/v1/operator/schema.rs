//! Request and response bodies of `/v1/operator`.

use hapax::activity::key_hash;
use hapax::command::CommandView;
use hapax::{ClaimStatus, ClaimSummary, Key, Tenant, millis};
use serde_json::{Map, Value};

use crate::api::request::reveal::Reveal;
use crate::api::v1::commands::schema::CommandShown;
use crate::api::v1::prelude::*;

/// A page of commands.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct CommandList {
    /// The commands.
    pub(crate) commands: Vec<ListedCommand>,
    /// The `after` of the next page; null at the end. Earlier pages may be short or even empty.
    #[schema(required)]
    pub(crate) next: Option<String>,
}

/// One command of a list.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ListedCommand {
    /// The operation; `METHOD /path` for a request through the proxy.
    pub(crate) operation: String,
    /// The key of the command; null if it is masked.
    #[schema(required)]
    pub(crate) key: Option<String>,
    /// A hash of the key, equal for equal keys. It can name the row in place of the key: `by=hash`.
    #[serde(default)]
    pub(crate) key_hash: String,
    /// A hash of the caller, for a request through the proxy or the layer.
    #[schema(required)]
    pub(crate) scope: Option<String>,
    /// `pending`, `unknown`, `completed` or `failed`.
    #[schema(example = "unknown")]
    pub(crate) state: String,
    /// The number of the last attempt.
    pub(crate) attempt: u32,
    /// The fence of the last attempt.
    pub(crate) fence: u64,
    /// How long ago the last attempt began.
    pub(crate) begun_ms_ago: u64,
    /// How long the command is kept.
    pub(crate) expires_in_ms: u64,
    /// The label of the last owner: what it called itself, or the node that it asked.
    #[serde(default)]
    #[schema(required)]
    pub(crate) label: Option<String>,
    /// Whether the key is hidden.
    #[serde(default)]
    pub(crate) masked: bool,
}

impl ListedCommand {
    pub(super) fn new(listed: &ClaimSummary, tenant: &Tenant, reveal: Reveal) -> Self {
        let ClaimSummary { key, status, fence, attempt, granted_ago, expires_in, label } = listed;
        Self {
            operation: key.scope().to_owned(),
            key: reveal.show(key.name().to_owned()),
            key_hash: key_hash(key),
            scope: scope(key, tenant),
            state: state_name(*status).to_owned(),
            attempt: *attempt,
            fence: fence.0,
            begun_ms_ago: millis(*granted_ago),
            expires_in_ms: millis(*expires_in),
            label: label.as_deref().map(str::to_owned),
            masked: reveal.is_masked(),
        }
    }
}

/// A command as an operator sees it.
#[derive(Serialize, ToSchema)]
pub(crate) struct OperatorCommand {
    #[serde(flatten)]
    command: CommandShown,
    /// Whether headers and body of the response are hidden.
    masked: bool,
}

impl OperatorCommand {
    pub(super) fn new(view: CommandView, reveal: Reveal) -> Self {
        let command = CommandShown::new(view);
        let command = if reveal.is_masked() { command.masked() } else { command };
        Self { command, masked: reveal.is_masked() }
    }
}

fn scope(key: &Key, tenant: &Tenant) -> Option<String> {
    let scope = key.tenant().as_str().strip_prefix(tenant.as_str())?.strip_prefix('/')?;
    Some(scope.to_owned())
}

/// The name of a command state in the API.
pub(super) fn state_name(status: ClaimStatus) -> &'static str {
    match status {
        ClaimStatus::Pending => "pending",
        ClaimStatus::Unknown => "unknown",
        ClaimStatus::Settled => "completed",
        ClaimStatus::Failed => "failed",
    }
}

/// The response that an operator gives in place of the owner.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct SettleCommand {
    /// The HTTP status of the response.
    #[schema(minimum = 200, maximum = 599)]
    status: u16,
    /// Strings; an array of strings for a repeated header.
    #[schema(value_type = Object, required = false)]
    headers: Option<Map<String, Value>>,
    /// The body as text.
    #[schema(nullable = false)]
    body: Option<String>,
    /// The body in base64, if it is not UTF-8; excludes `body`.
    #[schema(nullable = false)]
    body_base64: Option<String>,
}

/// The request to sweep.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
#[schema(as = Sweep)]
pub(crate) struct SweepRequest {
    /// The maximum number of rows to delete.
    #[schema(default = 10_000, minimum = 1, maximum = 1_000_000, nullable = false)]
    at_most: Option<u64>,
}

/// The result of a sweep.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Swept)]
pub(crate) struct SweepResult {
    /// How many rows were deleted; always 0 where the store expires them itself.
    pub(crate) swept: u64,
    /// Whether expired rows may be left: repeat the request while it is true.
    pub(crate) more: bool,
}
