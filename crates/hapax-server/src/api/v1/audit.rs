//! The audit log: one line and one count for each operator action.

use std::sync::{Arc, OnceLock};

use hapax::command::CommandView;
use hapax::queue::ItemId;
use hapax::{Fence, metric_names};
use metrics::counter;

use crate::api::request::ApiRequest;
use crate::api::response::ApiResult;
use crate::daemon::logging::AUDIT;
use crate::problem::{Problem, ProblemKind};

/// The subject of an operator action. Keys and operations (whose paths may contain ids) are never
/// logged; the fence identifies a command, the item id a dead letter.
#[derive(Default)]
pub(super) struct AuditSubject {
    pub(super) fence: OnceLock<Fence>,
    pub(super) item: OnceLock<ItemId>,
}

impl AuditSubject {
    pub(super) fn set_fence(&self, view: &CommandView) {
        if let Some(fence) = view.fence {
            let _ = self.fence.set(fence);
        }
    }
}

/// Runs an operator action in its own task, so that a client that disconnects does not cut it between
/// two steps, and logs and counts its outcome.
pub(super) async fn audited<F: Future<Output = ApiResult> + Send + 'static>(
    action: &'static str,
    request: ApiRequest,
    run: impl FnOnce(ApiRequest, Arc<AuditSubject>) -> F,
) -> ApiResult {
    let (token, tenant) = (request.caller.clone(), request.tenant.clone());
    let subject = Arc::<AuditSubject>::default();
    let running = run(request, subject.clone());
    let task = tokio::spawn(async move {
        let outcome = running.await;
        let result = outcome.as_ref().map_or_else(|problem| problem.kind().code(), |_| "done");
        let fence = subject.fence.get().map(|fence| fence.0);
        let item = subject.item.get().map(ToString::to_string);
        let (token, tenant) = (&*token, tenant.as_str());
        tracing::info!(target: AUDIT, token, tenant, action, result, fence, item, "operator action");
        counter!(metric_names::OPERATOR_ACTIONS, "action" => action, "result" => result)
            .increment(1);
        outcome
    });
    let lost = |_| Problem::new(ProblemKind::Internal, "this is a bug; the server's log has more");
    task.await.map_err(lost)?
}
