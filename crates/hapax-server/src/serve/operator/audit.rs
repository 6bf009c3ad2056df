//! What operators did: one log line and one count for each action.

use std::sync::Arc;

use hapax::{Fence, Tenant, meters};
use metrics::counter;

use crate::logging::AUDIT;
use crate::serve::call::Call;
use crate::serve::problem::Problem;

/// An action, and by whom. The key and the operation (whose path may hold ids) are left out, as
/// everywhere; the fence tells one command from another.
pub(super) struct Audit {
    action: &'static str,
    token: Arc<str>,
    tenant: Tenant,
    pub(super) fence: Option<Fence>,
}

impl Audit {
    pub(super) fn new(action: &'static str, call: &Call) -> Self {
        Self { action, token: call.caller.clone(), tenant: call.tenant.clone(), fence: None }
    }

    /// Writes it down, and passes on what came of it.
    pub(super) fn told<T>(self, outcome: Result<T, Problem>) -> Result<T, Problem> {
        let Self { action, token, tenant, fence } = self;
        let result = outcome.as_ref().map_or_else(|problem| problem.kind.code, |_| "done");
        let fence = fence.map(|fence| fence.0);
        let (token, tenant) = (&*token, tenant.as_str());
        tracing::info!(target: AUDIT, token, tenant, action, result, fence, "operator action");
        counter!(meters::OPERATOR_ACTIONS, "action" => action, "result" => result).increment(1);
        outcome
    }
}
