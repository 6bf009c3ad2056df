//! What operators did: one log line and one count for each action.

use std::sync::Arc;

use hapax::queue::ItemId;
use hapax::{Fence, Tenant, meters};
use metrics::counter;

use crate::logging::AUDIT;
use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::request::Call;

/// An action, and by whom. The key and the operation (whose path may hold ids) are left out, as
/// everywhere; the fence tells one command from another, the id one dead letter.
pub(super) struct Audit {
    action: &'static str,
    token: Arc<str>,
    tenant: Tenant,
    pub(super) fence: Option<Fence>,
    pub(super) item: Option<ItemId>,
}

impl Audit {
    pub(super) fn new(action: &'static str, call: &Call) -> Self {
        let (token, tenant) = (call.caller.clone(), call.tenant.clone());
        Self { action, token, tenant, fence: None, item: None }
    }

    /// Writes it down, and passes on what came of it.
    pub(super) fn told<T>(self, outcome: Result<T, Problem>) -> Result<T, Problem> {
        let Self { action, token, tenant, fence, item } = self;
        let result = outcome.as_ref().map_or_else(|problem| problem.kind().code(), |_| "done");
        let (fence, item) = (fence.map(|fence| fence.0), item.map(|id| id.to_string()));
        let (token, tenant) = (&*token, tenant.as_str());
        tracing::info!(target: AUDIT, token, tenant, action, result, fence, item, "operator action");
        counter!(meters::OPERATOR_ACTIONS, "action" => action, "result" => result).increment(1);
        outcome
    }
}

/// A client that hangs up would otherwise cut it between two steps.
pub(super) async fn to_its_end<T: Send + 'static>(
    action: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let lost = |_| Problem::new(ProblemKind::Internal, "this is a bug; the server's log has more");
    tokio::spawn(action).await.map_err(lost)?
}
