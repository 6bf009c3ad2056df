//! The audit of operator actions. Every action is a line of the process log and a count; those that
//! change or reveal something are also in the audit log of the tenant, which is in the store.

mod log;

use std::sync::{Arc, OnceLock};

use hapax::command::CommandView;
use hapax::queue::ItemId;
use hapax::{Clock, Fence, SystemClock, Tenant, metric_names};
use metrics::counter;

pub(crate) use log::{AuditEntry, AuditLog, AuditSubject};

use crate::api::app::AppState;
use crate::api::request::ApiRequest;
use crate::api::request::reveal::Reveal;
use crate::api::response::ApiResult;
use crate::daemon::logging::AUDIT;
use crate::problem::{Problem, ProblemKind};

/// The audit of one action. Its log line never has keys and operations (whose paths may contain ids):
/// the fence identifies a command, the item id a dead letter.
pub(super) struct AuditTrail {
    app: AppState,
    who: Arc<str>,
    tenant: Tenant,
    note: Result<Option<String>, Problem>,
    fence: OnceLock<Fence>,
    item: OnceLock<ItemId>,
    begun: OnceLock<BegunAction>,
}

/// An action that the audit log knows as begun.
#[derive(Clone)]
pub(super) struct BegunAction {
    app: AppState,
    tenant: Tenant,
    entry: AuditEntry,
    offset: u64,
}

impl AuditTrail {
    fn new(app: AppState, request: &ApiRequest) -> Self {
        let (who, tenant) = (request.caller.clone(), request.tenant.clone());
        let (fence, item, begun) = Default::default();
        Self { app, who, tenant, note: request.note(), fence, item, begun }
    }

    pub(super) fn set_fence(&self, view: &CommandView) {
        if let Some(fence) = view.fence {
            let _ = self.fence.set(fence);
        }
    }

    pub(super) fn set_item(&self, id: ItemId) {
        let _ = self.item.set(id);
    }

    /// Appends the action to the audit log before it is done. If that fails, it must not be done.
    pub(super) async fn begin(&self, action: &str, subject: AuditSubject) -> Result<(), Problem> {
        let begun = self.begin_task(action, subject).await?;
        let _ = self.begun.set(begun);
        Ok(())
    }

    /// As [`Self::begin`], for an action that outlives its request: the caller ends it.
    pub(super) async fn begin_task(
        &self,
        action: &str,
        subject: AuditSubject,
    ) -> Result<BegunAction, Problem> {
        let (app, tenant) = (self.app.clone(), self.tenant.clone());
        let entry = AuditEntry {
            id: app.audit.next_id(),
            at: SystemClock.now().0,
            who: self.who.to_string(),
            action: action.to_owned(),
            result: "begun".to_owned(),
            subject,
            note: self.note.clone()?,
            node: app.audit.node().to_owned(),
            begun: None,
        };
        let offset =
            app.call_store(app.audit.append(&tenant, &entry)).await.map_err(|problem| {
                problem.prefix_detail("the audit log cannot be written, so nothing was done: ")
            })?;
        Ok(BegunAction { app, tenant, entry, offset })
    }

    /// Appends to the audit log that the caller asked to see what is masked.
    pub(super) async fn begin_reveal(
        &self,
        reveal: Reveal,
        subject: AuditSubject,
    ) -> Result<(), Problem> {
        match reveal {
            Reveal::Requested => self.begin("reveal", subject).await,
            Reveal::Masked | Reveal::Shown => Ok(()),
        }
    }
}

impl BegunAction {
    /// Appends the result. A failure is logged: the action itself is done.
    pub(super) async fn end(&self, result: &str, counts: impl FnOnce(&mut AuditSubject) + Send) {
        let mut entry = AuditEntry {
            result: result.to_owned(),
            begun: Some(self.offset),
            ..self.entry.clone()
        };
        counts(&mut entry.subject);
        let Self { app, tenant, .. } = self;
        if let Err(problem) = app.call_store(app.audit.append(tenant, &entry)).await {
            let reason = problem.kind().code();
            tracing::warn!(reason, "the result of an operator action is not in the audit log");
        }
    }
}

/// Runs an operator action in its own task, so that a client that disconnects does not cut it between
/// two steps, and logs and counts its outcome.
pub(super) async fn audited<F: Future<Output = ApiResult> + Send + 'static>(
    app: AppState,
    action: &'static str,
    request: ApiRequest,
    run: impl FnOnce(ApiRequest, Arc<AuditTrail>) -> F,
) -> ApiResult {
    let trail = Arc::new(AuditTrail::new(app, &request));
    let running = run(request, trail.clone());
    let task = tokio::spawn(async move {
        let outcome = running.await;
        let result = outcome.as_ref().map_or_else(|problem| problem.kind().code(), |_| "done");
        let fence = trail.fence.get().map(|fence| fence.0);
        let item = trail.item.get().map(ToString::to_string);
        let (token, tenant) = (&*trail.who, trail.tenant.as_str());
        tracing::info!(target: AUDIT, token, tenant, action, result, fence, item, "operator action");
        counter!(metric_names::OPERATOR_ACTIONS, "action" => action, "result" => result)
            .increment(1);
        if let Some(begun) = trail.begun.get() {
            begun.end(result, |subject| subject.fence = fence.or(subject.fence)).await;
        }
        outcome
    });
    let lost = |_| Problem::new(ProblemKind::Internal, "this is a bug; the server's log has more");
    task.await.map_err(lost)?
}
