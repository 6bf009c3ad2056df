//! `/v1/operator`: decisions about commands in place of their owner.
//!
//! Every action runs to completion and is audited, even if the operator's client disconnects.

mod cursor;
mod schema;

use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::command::{CommandState, CommandView, Commands, OperatorDecision, OperatorOutcome};
use hapax::{ClaimQuery, ClaimStatus, Fence, KeyKind, Operation, Tenant};
use hyper::StatusCode;
use tokio::time::Instant;

use schema::{CommandList, ListedCommand, SettleCommand, SweepRequest, SweepResult, state_name};

use super::audit::{AuditEntry, run_to_completion};
use super::commands::schema::read_response;
use super::commands::schema::{CommandShown, CompletedState};
use super::commands::{command_missing, command_shown};
use crate::serve::app::AppState;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::{ApiRequest, parse_query_number};
use crate::serve::response::{ApiResult, json_response};

/// How many commands a page has by default.
const DEFAULT_PAGE: u64 = 100;
/// How many claims and records one request sweeps by default.
const DEFAULT_SWEEP: u64 = 10_000;

/// List commands of the tenant and its scopes.
#[utoipa::path(
    get, path = "/v1/operator/commands", operation_id = "list_commands", tag = "operator",
    params(
        ("state" = Option<String>, Query, description = "Only commands in this state: `pending`, `unknown`, `completed` or `failed`"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The approximate size of the page; 100 by default"),
    ),
    responses((status = 200, body = CommandList, description = "A page; it may be short or even empty while there is a `next`")),
)]
pub(crate) async fn list(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let audit = AuditEntry::new("list", &request);
    run_to_completion(async move {
        let page = async {
            let list = parse_list(&app, &request)?;
            app.call_store(page(&app, list)).await
        };
        audit.record_outcome(page.await).map(|page| json_response(StatusCode::OK, &page))
    })
    .await
}

fn parse_list(app: &AppState, request: &ApiRequest) -> Result<ClaimQuery, Problem> {
    let [state, after, limit] = request.query_parameters(["state", "after", "limit"])?;
    let all =
        [ClaimStatus::Pending, ClaimStatus::Unknown, ClaimStatus::Settled, ClaimStatus::Failed];
    let standing = match state {
        None => None,
        Some(state) => match all.into_iter().find(|standing| state_name(*standing) == state) {
            None => {
                let text = "query parameter `state` takes pending, unknown, completed or failed";
                return Err(Problem::invalid(text));
            }
            found => found,
        },
    };
    let limit =
        limit.map_or(Ok(DEFAULT_PAGE), |text| parse_query_number("limit", text, 1..=1000))?;
    let (store, tenant) = (app.store.name(), request.tenant.clone());
    let after = after.map(|after| cursor::unwrap_cursor(store, &tenant, after)).transpose()?;
    let at_most = u32::try_from(limit).expect("at most 1000");
    Ok(ClaimQuery { tenant, kind: KeyKind::Command, status: standing, after, max_claims: at_most })
}

/// Reads until the page is full, the list ends, or the time is used up.
async fn page(app: &AppState, mut list: ClaimQuery) -> Result<CommandList, Problem> {
    let (since, limit) = (Instant::now(), list.max_claims as usize);
    let max_time = max_steps_time(app);
    let mut commands = Vec::new();
    loop {
        list.max_claims = u32::try_from(limit - commands.len()).expect("at most 1000");
        let page = app.store.list(&list).await?;
        commands.extend(page.claims.iter().map(|one| ListedCommand::new(one, &list.tenant)));
        let full = commands.len() >= limit || since.elapsed() >= max_time;
        match page.next {
            Some(next) if !full => list.after = Some(next),
            next => {
                let wrapped =
                    |next: &str| cursor::wrap_cursor(app.store.name(), &list.tenant, next);
                return Ok(CommandList { commands, next: next.as_deref().map(wrapped) });
            }
        }
    }
}

/// Show a command, also one of a caller behind the proxy.
#[utoipa::path(
    get, path = "/v1/operator/commands/{operation}/{key}", operation_id = "show_command", tag = "operator",
    params(
        ("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255),
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list"),
    ),
    responses(
        (status = 200, body = CommandShown, description = "The state of the command, without its token"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`command-missing`"),
    ),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let mut audit = AuditEntry::new("show", &request);
    run_to_completion(async move {
        let looked = async {
            let commands = app.commands(&tenant_in_scope(&request)?);
            let looked = commands.look(Operation(request.segment(1)), request.segment(2));
            app.call_store(looked).await?.ok_or_else(command_missing)
        };
        let view = looked.await;
        audit.fence = view.as_ref().ok().and_then(|view| view.fence);
        audit.record_outcome(view).map(|view| json_response(StatusCode::OK, &command_shown(view)))
    })
    .await
}

/// Settle a command that failed or whose outcome is unknown with the response that it had.
#[utoipa::path(
    put, path = "/v1/operator/commands/{operation}/{key}", operation_id = "settle_command", tag = "operator",
    params(
        ("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255),
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list"),
    ),
    request_body = SettleCommand,
    responses(
        (status = 200, body = CompletedState, description = "Callers get this response from now on; also if the same response is sent again"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`command-missing`"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`in-progress`: the owner is presumed alive; `already-completed`: the command has another response. Nothing was changed"),
    ),
)]
pub(crate) async fn settle(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let read = || {
        let mut fields = request.json_fields()?;
        // The proxy replays this as the final response, which a 1xx is not.
        let response = read_response(&mut fields, 200..=599)?;
        fields.finish()?;
        Ok(OperatorDecision::Settle(response))
    };
    let decision = read();
    decide(app, request, "settle", decision).await?;
    Ok(json_response(StatusCode::OK, &CompletedState { state: "completed" }))
}

/// Release a command that failed or whose outcome is unknown: the next begin is a first attempt.
#[utoipa::path(
    delete, path = "/v1/operator/commands/{operation}/{key}", operation_id = "release_command", tag = "operator",
    params(
        ("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255),
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list"),
    ),
    responses(
        (status = 204, description = "The command is forgotten; only its fence keeps growing"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`command-missing`"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`in-progress`: the owner is presumed alive; `already-completed`: the command has its response. Nothing was changed"),
    ),
)]
pub(crate) async fn release(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    decide(app, request, "release", Ok(OperatorDecision::Release)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn decide(
    app: AppState,
    request: ApiRequest,
    action: &'static str,
    decision: Result<OperatorDecision, Problem>,
) -> Result<(), Problem> {
    let mut audit = AuditEntry::new(action, &request);
    run_to_completion(async move {
        let decided = async {
            let decision = decision?;
            let commands = app.commands(&tenant_in_scope(&request)?);
            let (operation, key) = (request.segment(1), request.segment(2));
            let decided = apply_decision(&commands, operation, key, &decision, &mut audit.fence);
            app.call_store(decided).await
        };
        let decided = decided.await;
        audit.record_outcome(decided)
    })
    .await
}

/// Applies a decision. `fence` is set to that of the attempt which the decision concerns.
async fn apply_decision(
    commands: &Commands,
    operation: &str,
    key: &str,
    decision: &OperatorDecision,
    fence: &mut Option<Fence>,
) -> Result<(), Problem> {
    let before = commands.look(Operation(operation), key).await?.ok_or_else(command_missing)?;
    *fence = before.fence;
    match commands.decide_as_operator(Operation(operation), key, decision).await? {
        OperatorOutcome::Done => Ok(()),
        OperatorOutcome::Missing => Err(command_missing()),
        OperatorOutcome::Pending => Err(in_progress(&before)),
        OperatorOutcome::Completed => {
            // A repeated decision whose first response was lost succeeds like the first.
            let after = commands.look(Operation(operation), key).await?;
            let repeated = after.is_some_and(|after| has_response(&after, decision));
            if repeated { Ok(()) } else { Err(completed()) }
        }
    }
}

fn has_response(view: &CommandView, decision: &OperatorDecision) -> bool {
    match (&view.state, decision) {
        (CommandState::Completed { response, .. }, OperatorDecision::Settle(given)) => {
            response == given
        }
        _ => false,
    }
}

fn in_progress(view: &CommandView) -> Problem {
    let text = "the owner of the command is presumed alive; nothing was changed";
    let problem = Problem::new(ProblemKind::InProgress, text);
    match view.state {
        CommandState::Pending { lease_left } => problem.retry_after(lease_left),
        _ => problem,
    }
}

fn completed() -> Problem {
    Problem::new(ProblemKind::AlreadyCompleted, "the command has a response; nothing was changed")
}

/// The tenant of the caller, or the scope of it that the query names.
fn tenant_in_scope(request: &ApiRequest) -> Result<Tenant, Problem> {
    let [scope] = request.query_parameters(["scope"])?;
    scope.map_or(Ok(request.tenant.clone()), |scope| Ok(request.tenant.scoped(scope)?))
}

/// Delete expired claims and records of every tenant. Readers do not see them anyway; this frees
/// their space, as the server does periodically on its own.
#[utoipa::path(
    post, path = "/v1/operator/sweep", operation_id = "sweep", tag = "operator",
    request_body(content = Option<SweepRequest>),
    responses((status = 200, body = SweepResult, description = "How many were deleted; repeat until it is 0")),
)]
pub(crate) async fn sweep(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let audit = AuditEntry::new("sweep", &request);
    run_to_completion(async move {
        let swept = async {
            request.expect_no_query()?;
            let mut fields = request.json_fields()?;
            let at_most = fields.number("at_most", 1..=1_000_000)?.unwrap_or(DEFAULT_SWEEP);
            fields.finish()?;
            let swept = hapax::sweep(&*app.store, at_most, max_steps_time(&app));
            app.call_store(swept).await
        };
        audit
            .record_outcome(swept.await)
            .map(|swept| json_response(StatusCode::OK, &SweepResult { swept }))
    })
    .await
}

/// How long further steps may be started, so that the last one ends within the timeout of the request.
fn max_steps_time(app: &AppState) -> Duration {
    app.settings.store_timeout.min(Duration::from_secs(1))
}
