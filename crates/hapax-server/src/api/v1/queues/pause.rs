//! Pausing and resuming a queue.

use std::collections::HashSet;

use hapax::queue::QueueName;
use hapax::{SystemClock, Tenant, worker};

use crate::api::request::auth::AccessPolicy;
use crate::api::v1::audit::{AuditSubject, audited};
use crate::api::v1::prelude::*;

/// Pause a queue: its workers finish what they have, and take nothing more until it is resumed.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/pause", operation_id = "pause_queue", tag = "queues",
    params(("Hapax-Note" = Option<String>, Header, description = "Why: it is shown beside the pause, and in the audit log. At most 500 bytes of percent-encoded UTF-8")),
    responses((status = 204, description = "Paused, for all tenants and workers of the store, within about a second; also if it was paused before")),
)]
pub(crate) async fn pause(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "pause", request, |request, trail| async move {
        let queue = parse_queue(&app, &request)?;
        let note = request.note()?;
        trail.begin("pause", AuditSubject::of_queue("queue", queue.as_str())).await?;
        let by = &request.caller;
        let pausing = worker::pause(&*app.store, &SystemClock, &queue, by, note.as_deref());
        app.call_store(pausing).await?;
        Ok(no_content())
    })
    .await
}

/// Resume a queue that is paused.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/resume", operation_id = "resume_queue", tag = "queues",
    params(("Hapax-Note" = Option<String>, Header, description = "Why, for the audit log: at most 500 bytes of percent-encoded UTF-8")),
    responses((status = 204, description = "Its workers go on within about a second; also if it was not paused")),
)]
pub(crate) async fn resume(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "resume", request, |request, trail| async move {
        let queue = parse_queue(&app, &request)?;
        trail.begin("resume", AuditSubject::of_queue("queue", queue.as_str())).await?;
        app.call_store(worker::resume(&*app.store, &queue)).await?;
        Ok(no_content())
    })
    .await
}

/// The queue of a request whose caller may pause it: a pause concerns all tenants of the store.
fn parse_queue(app: &AppState, request: &ApiRequest) -> Result<QueueName, Problem> {
    request.expect_no_query()?;
    request.json_fields()?.finish()?;
    let tenants: HashSet<_> = app.access.tenants().into_iter().collect();
    let is_shared = matches!(app.access, AccessPolicy::Tokens(_)) && tenants.len() > 1;
    if is_shared && request.tenant != Tenant::default() {
        let text = "a pause stops the queue of all tenants of this server; only a token of the \
                    tenant `default` may pause and resume";
        return Err(Problem::new(ProblemKind::Forbidden, text));
    }
    Ok(QueueName::new(request.segment(0))?)
}
