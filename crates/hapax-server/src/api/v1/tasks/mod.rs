//! `/v1/operator/tasks`: actions on many rows, which go on after their request was answered. They are
//! in the memory of the node that runs them.

mod running;

pub(crate) use running::{OperatorTasks, RunningTask, TaskSubject};

use super::audit::{AuditSubject, AuditTrail, audited};
use super::prelude::*;

/// One action on many rows.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Task)]
pub(crate) struct TaskBody {
    /// The id of the task.
    pub(crate) id: String,
    /// `requeue`, `discard`, `settle` or `release`.
    #[schema(example = "requeue")]
    pub(crate) action: String,
    /// The rows that it is about.
    pub(crate) subject: AuditSubject,
    /// The name of the operator's token.
    pub(crate) by: String,
    /// When it began, in milliseconds since 1970.
    pub(crate) started_at: u64,
    /// How many rows there were at the beginning, where that is known.
    #[schema(required)]
    pub(crate) total: Option<u64>,
    /// How many rows were changed.
    pub(crate) done: u64,
    /// How many rows were not: they were gone, had changed, or the store failed.
    pub(crate) failed: u64,
    /// `running`, `done`, `stopped` (by an operator, or because the server shut down) or `failed`.
    #[schema(example = "running")]
    pub(crate) state: String,
    /// Why it failed as a whole.
    #[schema(required)]
    pub(crate) error: Option<String>,
}

/// The last tasks of this node.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct TaskListBody {
    /// The tasks, newest first; at most 100 of all tenants are remembered.
    pub(crate) tasks: Vec<TaskBody>,
}

/// List the tasks of this node.
#[utoipa::path(
    get, path = "/v1/operator/tasks", operation_id = "list_tasks", tag = "operator",
    responses((status = 200, body = TaskListBody, description = "The tasks of the tenant that this node runs or has run, newest first")),
)]
pub(crate) async fn list_tasks(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "tasks", request, |request, _| async move {
        request.expect_no_query()?;
        let tasks = app.tasks.list(&request.tenant);
        Ok(json_response(StatusCode::OK, &TaskListBody { tasks }))
    })
    .await
}

/// Show the progress of a task.
#[utoipa::path(
    get, path = "/v1/operator/tasks/{id}", operation_id = "show_task", tag = "operator",
    responses(
        (status = 200, body = TaskBody, description = "The task"),
        (status = 404, description = "`task-missing`: this node has no such task, or no longer"),
    ),
)]
pub(crate) async fn show_task(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "task", request, |request, _| async move {
        request.expect_no_query()?;
        let task = find(&app, &request)?;
        Ok(json_response(StatusCode::OK, &task.body()))
    })
    .await
}

/// Stop a task after the row that it is at. What it did stays done.
#[utoipa::path(
    delete, path = "/v1/operator/tasks/{id}", operation_id = "stop_task", tag = "operator",
    params(("Hapax-Note" = Option<String>, Header, description = "Why, for the audit log: at most 500 bytes of percent-encoded UTF-8")),
    responses(
        (status = 200, body = TaskBody, description = "The task, which ends soon if it is still `running`; also if it had ended"),
        (status = 404, description = "`task-missing`: this node has no such task, or no longer"),
    ),
)]
pub(crate) async fn stop_task(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "stop", request, |request, trail| async move {
        request.expect_no_query()?;
        let task = find(&app, &request)?;
        let subject = AuditSubject { task: Some(task.id().to_owned()), ..task.subject().clone() };
        trail.begin("stop", subject).await?;
        task.stop();
        Ok(json_response(StatusCode::OK, &task.body()))
    })
    .await
}

fn find(app: &AppState, request: &ApiRequest) -> Result<std::sync::Arc<RunningTask>, Problem> {
    app.tasks.find(&request.tenant, request.segment(1)).ok_or_else(|| {
        let text = "this node has no such task; each node knows the tasks that it runs, and the \
                    last 100 of them";
        Problem::new(ProblemKind::TaskMissing, text)
    })
}

/// Begins a task: it is in the audit log from now on, and answers 202.
pub(super) async fn begin<F>(
    app: &AppState,
    request: &ApiRequest,
    trail: &AuditTrail,
    task: TaskSubject,
    run: impl FnOnce(std::sync::Arc<RunningTask>) -> F,
) -> ApiResult
where
    F: Future<Output = Result<bool, Problem>> + Send + 'static,
{
    let slot = app.tasks.reserve(&request.tenant)?;
    let task = RunningTask::new(task, &request.tenant, &request.caller, slot);
    let subject = AuditSubject { task: Some(task.id().to_owned()), ..task.subject().clone() };
    let begun = trail.begin_task(task.action(), subject).await?;
    let answer = json_response(StatusCode::ACCEPTED, &task.body());
    app.tasks.spawn(app, begun, task.clone(), run(task));
    Ok(answer)
}
