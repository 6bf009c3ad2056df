//! `/v1/operator/conflicts`: keys that were used for two requests, and requests that met one in progress, by caller.

use super::{HOUR, activity_since, now};
use crate::api::v1::audit::audited;
use crate::api::v1::prelude::*;

/// Callers whose requests met conflicts in the last hour.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ConflictList {
    /// The callers, those with the most conflicts first.
    pub(crate) groups: Vec<ConflictGroup>,
    /// Since when conflicts are counted, in milliseconds since 1970.
    pub(crate) since: u64,
}

/// The conflicts of one caller and operation.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ConflictGroup {
    /// The caller, as a hash; null if keys are not apart by caller.
    #[schema(required)]
    pub(crate) caller: Option<String>,
    /// The operation.
    pub(crate) operation: String,
    /// Keys that belonged to another request (422).
    pub(crate) reused: u64,
    /// Requests whose first one was still running (409).
    pub(crate) in_progress: u64,
    /// When the last one was, to the minute, in milliseconds since 1970.
    pub(crate) last_at: u64,
}

/// List conflicts by caller and operation.
#[utoipa::path(
    get, path = "/v1/operator/conflicts", operation_id = "list_conflicts", tag = "operator",
    responses((status = 200, body = ConflictList, description = "The last hour; at most 50 callers of each node and minute are counted")),
)]
pub(crate) async fn list(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "conflicts", request, |request, _| async move {
        request.expect_no_query()?;
        let since = now().saturating_sub(HOUR);
        let entries = app.call_store(activity_since(&app, &request.tenant, since)).await?;
        let mut groups: Vec<ConflictGroup> = Vec::new();
        for entry in &entries {
            for conflicts in &entry.conflicts {
                let is_same = |group: &&mut ConflictGroup| {
                    group.caller == conflicts.caller && group.operation == conflicts.operation
                };
                let last_at = entry.at + entry.ms;
                match groups.iter_mut().find(is_same) {
                    Some(group) => {
                        group.reused += conflicts.reused;
                        group.in_progress += conflicts.in_progress;
                        group.last_at = group.last_at.max(last_at);
                    }
                    None => groups.push(ConflictGroup {
                        caller: conflicts.caller.clone(),
                        operation: conflicts.operation.clone(),
                        reused: conflicts.reused,
                        in_progress: conflicts.in_progress,
                        last_at,
                    }),
                }
            }
        }
        groups.sort_by_key(|group| std::cmp::Reverse((group.reused, group.in_progress)));
        Ok(json_response(StatusCode::OK, &ConflictList { groups, since }))
    })
    .await
}
