//! Deciding about many commands, as a task.

use std::sync::Arc;
use std::time::Duration;

use hapax::command::{OperatorDecision, OperatorOutcome};
use hapax::{ClaimQuery, ClaimStatus, KeyKind, Operation, millis};
use serde_json::{Map, Value};

use super::schema::state_name;
use crate::api::v1::audit::{AuditSubject, audited};
use crate::api::v1::commands::schema::read_response;
use crate::api::v1::prelude::*;
use crate::api::v1::tasks::{self, RunningTask, TaskBody, TaskSubject};

/// How many commands are examined at once.
const PAGE: u32 = 100;

/// A decision about many commands.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct DecideCommands {
    /// Which commands.
    r#where: CommandFilter,
    /// `settle`: they ran, and this is their response; `release`: they did not run.
    action: DecisionAction,
    /// For `settle`: the HTTP status of the response.
    #[schema(minimum = 200, maximum = 599, nullable = false)]
    status: Option<u16>,
    /// For `settle`: strings; an array of strings for a repeated header.
    #[schema(value_type = Object, required = false)]
    headers: Option<Map<String, Value>>,
    /// For `settle`: the body as text.
    #[schema(nullable = false)]
    body: Option<String>,
    /// For `settle`: the body in base64, if it is not UTF-8; excludes `body`.
    #[schema(nullable = false)]
    body_base64: Option<String>,
}

/// The decision about every command that matches.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DecisionAction {
    Release,
    Settle,
}

/// Which commands match.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct CommandFilter {
    /// Only commands in this state.
    state: DecidableState,
    /// Only commands of this operation.
    #[schema(min_length = 1, max_length = 255, nullable = false)]
    operation: Option<String>,
    /// Only commands whose last attempt began so long ago.
    #[schema(minimum = 0, maximum = 31_622_400_000_u64, nullable = false)]
    older_than_ms: Option<u64>,
}

/// The states in which an operator may decide.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DecidableState {
    Unknown,
    Failed,
}

struct ParsedFilter {
    status: ClaimStatus,
    operation: Option<Arc<str>>,
    older_than: Option<Duration>,
}

/// Settle or release many commands whose outcome is unknown, or that failed.
#[utoipa::path(
    post, path = "/v1/operator/commands/decide", operation_id = "decide_commands", tag = "operator",
    request_body = DecideCommands,
    responses((status = 202, body = TaskBody, description = "A task of this node decides them; `GET /v1/operator/tasks/{id}` shows its progress")),
)]
pub(crate) async fn decide_many(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "decide", request, |request, trail| async move {
        request.expect_no_query()?;
        let (filter, decision) = read_decision(request.json_fields()?)?;
        let action = match decision {
            OperatorDecision::Settle(_) => "settle",
            OperatorDecision::Release => "release",
        };
        let subject = AuditSubject {
            state: Some(state_name(filter.status).to_owned()),
            operation: filter.operation.as_deref().map(str::to_owned),
            older_than_ms: filter.older_than.map(millis),
            ..AuditSubject::new("commands")
        };
        let task = TaskSubject { action, subject, total: None };
        let query = ClaimQuery {
            tenant: request.tenant.clone(),
            kind: KeyKind::Command,
            status: Some(filter.status),
            scope: filter.operation,
            after: None,
            max_claims: PAGE,
        };
        let (app, older_than) = (&app, filter.older_than);
        tasks::begin(app, &request, &trail, task, |task| {
            decide_matching(app.clone(), task, query, older_than.unwrap_or_default(), decision)
        })
        .await
    })
    .await
}

fn read_decision(mut fields: JsonFields) -> Result<(ParsedFilter, OperatorDecision), Problem> {
    let filter = required("where", fields.object("where")?)?;
    let mut filter = JsonFields::from_value(Value::Object(filter), "an object")?;
    let status = match filter.text("state")?.as_deref() {
        Some("unknown") => ClaimStatus::Unknown,
        Some("failed") => ClaimStatus::Failed,
        _ => return Err(Problem::invalid("field `where.state` takes unknown or failed")),
    };
    let operation = filter.short_text("operation", 1..=255)?.map(Into::into);
    let older_than = filter.millis("older_than_ms", 0..=*RETENTION.end())?;
    filter.finish()?;
    let decision = match fields.text("action")?.as_deref() {
        Some("release") => OperatorDecision::Release,
        // The proxy replays this as the final response, which a 1xx is not.
        Some("settle") => OperatorDecision::Settle(read_response(&mut fields, 200..=599)?),
        _ => return Err(Problem::invalid("field `action` takes release or settle")),
    };
    fields.finish()?;
    Ok((ParsedFilter { status, operation, older_than }, decision))
}

async fn decide_matching(
    app: AppState,
    task: Arc<RunningTask>,
    mut query: ClaimQuery,
    older_than: Duration,
    decision: OperatorDecision,
) -> Result<bool, Problem> {
    let decided = decide_each(&app, &task, &mut query, older_than, decision).await;
    app.claim_counter.note_change(&query.tenant);
    decided
}

/// Whether all were decided; otherwise the task was stopped.
async fn decide_each(
    app: &AppState,
    task: &RunningTask,
    query: &mut ClaimQuery,
    older_than: Duration,
    decision: OperatorDecision,
) -> Result<bool, Problem> {
    loop {
        let page = task.call_store(app, || app.store.list(query)).await?;
        for listed in page.claims.iter().filter(|listed| listed.granted_ago >= older_than) {
            if task.is_stopped() {
                return Ok(false);
            }
            let (commands, key) = (app.commands(listed.key.tenant()), &listed.key);
            let operation = Operation(key.scope());
            let decide = || commands.decide_as_operator(operation, key.name(), &decision);
            task.count(task.call_store(app, decide).await? == OperatorOutcome::Done);
        }
        match page.next {
            Some(_) if task.is_stopped() => return Ok(false),
            None => return Ok(true),
            next => query.after = next,
        }
    }
}
