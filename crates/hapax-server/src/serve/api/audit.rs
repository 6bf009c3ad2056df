//! The audit log: one line and one count for each operator action.

use std::sync::Arc;

use hapax::queue::ItemId;
use hapax::{Fence, Tenant, metric_names};
use metrics::counter;

use crate::daemon::logging::AUDIT;
use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::request::ApiRequest;

/// One operator action and its caller. Keys and operations (whose paths may contain ids) are never
/// logged; the fence identifies a command, the item id a dead letter.
pub(super) struct AuditEntry {
    action: &'static str,
    token: Arc<str>,
    tenant: Tenant,
    pub(super) fence: Option<Fence>,
    pub(super) item: Option<ItemId>,
}

impl AuditEntry {
    pub(super) fn new(action: &'static str, request: &ApiRequest) -> Self {
        let (token, tenant) = (request.caller.clone(), request.tenant.clone());
        Self { action, token, tenant, fence: None, item: None }
    }

    /// Logs and counts the outcome, and returns it unchanged.
    pub(super) fn record_outcome<T>(self, outcome: Result<T, Problem>) -> Result<T, Problem> {
        let Self { action, token, tenant, fence, item } = self;
        let result = outcome.as_ref().map_or_else(|problem| problem.kind().code(), |_| "done");
        let (fence, item) = (fence.map(|fence| fence.0), item.map(|id| id.to_string()));
        let (token, tenant) = (&*token, tenant.as_str());
        tracing::info!(target: AUDIT, token, tenant, action, result, fence, item, "operator action");
        counter!(metric_names::OPERATOR_ACTIONS, "action" => action, "result" => result)
            .increment(1);
        outcome
    }
}

/// Runs an action in its own task, so that a client that disconnects does not cut it between two
/// steps.
pub(super) async fn run_to_completion<T: Send + 'static>(
    action: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let lost = |_| Problem::new(ProblemKind::Internal, "this is a bug; the server's log has more");
    tokio::spawn(action).await.map_err(lost)?
}
