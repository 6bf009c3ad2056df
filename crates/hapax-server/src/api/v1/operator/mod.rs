//! `/v1/operator`: decisions about commands in place of their owner.
//!
//! Every action runs to completion and is audited, even if the operator's client disconnects.

pub(in crate::api) mod activity;
pub(crate) mod audit;
mod by_hash;
pub(crate) mod claim_counter;
mod cursor;
pub(crate) mod decide;
pub(crate) mod locks;
mod schema;
pub(crate) mod tenants;
pub(crate) mod waiting;

use std::time::Duration;

use hapax::command::{CommandState, CommandView, OperatorDecision, OperatorOutcome};
use hapax::{ClaimQuery, ClaimStatus, ClaimSummary, KeyKind, Operation, StoreError, Swept, Tenant};
use tokio::time::Instant;

pub(crate) use audit::{AuditPage, AuditedAction};
pub(crate) use locks::{ListedLock, LockList};
pub(crate) use schema::{CommandList, SweepResult};
use schema::{ListedCommand, OperatorCommand, SettleCommand, SweepRequest, state_name};

use super::audit::{AuditSubject, AuditTrail, audited};
use super::commands::command_missing;
use super::commands::schema::{CompletedState, completed_response, read_response};
use super::prelude::*;
use crate::api::request::reveal::Reveal;

/// How many rows one request sweeps by default.
const DEFAULT_SWEEP: u64 = 10_000;

/// List commands of the tenant and its scopes.
#[utoipa::path(
    get, path = "/v1/operator/commands", operation_id = "list_commands", tag = "operator",
    params(
        ("state" = Option<String>, Query, description = "Only commands in this state: `pending`, `unknown`, `completed` or `failed`"),
        ("operation" = Option<String>, Query, min_length = 1, max_length = 255, description = "Only commands of this operation"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The approximate size of the page; 100 by default"),
        ("reveal" = Option<bool>, Query, description = "Whether keys, payloads and answers are shown; by default to `admin` tokens only. `true` is audited, and 403 for the scope `read`"),
    ),
    responses((status = 200, body = CommandList, description = "A page; it may be short or even empty while there is a `next`")),
)]
pub(crate) async fn list(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "list", request, |request, trail| async move {
        let (query, reveal) = parse_list(&app, &request)?;
        let tenant = query.tenant.clone();
        trail.begin_reveal(reveal, AuditSubject::new("commands")).await?;
        let (claims, next) = app.call_store(page(&app, query)).await?;
        let commands = claims.iter().map(|one| ListedCommand::new(one, &tenant, reveal)).collect();
        Ok(json_response(StatusCode::OK, &CommandList { commands, next }))
    })
    .await
}

fn parse_list(app: &AppState, request: &ApiRequest) -> Result<(ClaimQuery, Reveal), Problem> {
    let [state, operation, after, limit, reveal] =
        request.query_parameters(["state", "operation", "after", "limit", "reveal"])?;
    let reveal = request.reveal(app, reveal)?;
    let status = state.map(parse_state).transpose()?;
    let query = claim_query(app, request, KeyKind::Command, status, after, limit)?;
    if operation.is_some_and(|operation| !(1..=hapax::MAX_NAME).contains(&operation.len())) {
        let text = format!("query parameter `operation` takes 1 to {} bytes", hapax::MAX_NAME);
        return Err(Problem::invalid(text));
    }
    Ok((ClaimQuery { scope: operation.map(Into::into), ..query }, reveal))
}

fn parse_state(state: &str) -> Result<ClaimStatus, Problem> {
    let text = "query parameter `state` takes pending, unknown, completed or failed";
    let all =
        [ClaimStatus::Pending, ClaimStatus::Unknown, ClaimStatus::Settled, ClaimStatus::Failed];
    let found = all.into_iter().find(|status| state_name(*status) == state);
    found.ok_or_else(|| Problem::invalid(text))
}

fn claim_query(
    app: &AppState,
    request: &ApiRequest,
    kind: KeyKind,
    status: Option<ClaimStatus>,
    after: Option<&str>,
    limit: Option<&str>,
) -> Result<ClaimQuery, Problem> {
    let max_claims = parse_page_limit(limit)?;
    let (store, tenant) = (app.store.name(), request.tenant.clone());
    let after = after.map(|after| cursor::unwrap_cursor(store, &tenant, after)).transpose()?;
    Ok(ClaimQuery { tenant, kind, status, scope: None, after, max_claims })
}

/// Reads until the page is full, the list ends, or the time is used up.
async fn page(
    app: &AppState,
    mut list: ClaimQuery,
) -> Result<(Vec<ClaimSummary>, Option<String>), Problem> {
    let (until, limit) = (Instant::now() + max_steps_time(app), list.max_claims as usize);
    let mut claims = Vec::new();
    loop {
        list.max_claims = u32::try_from(limit - claims.len()).expect("at most 1000");
        let page = app.store.list(&list).await?;
        claims.extend(page.claims);
        let full = claims.len() >= limit || Instant::now() >= until;
        match page.next {
            Some(next) if !full => list.after = Some(next),
            next => {
                let wrap = |next| cursor::wrap_cursor(app.store.name(), &list.tenant, next);
                return Ok((claims, next.as_deref().map(wrap)));
            }
        }
    }
}

/// Show a command, also one of a caller behind the proxy.
#[utoipa::path(
    get, path = "/v1/operator/commands/{operation}/{key}", operation_id = "show_command", tag = "operator",
    params(
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list; may be left out if only one caller has such a command"),
        ("reveal" = Option<bool>, Query, description = "Whether keys, payloads and answers are shown; by default to `admin` tokens only. `true` is audited, and 403 for the scope `read`"),
    ),
    responses(
        (status = 200, body = OperatorCommand, description = "The state of the command, without its token"),
        (status = 404, description = "`command-missing`"),
        (status = 409, description = "`scope-ambiguous`: several callers have such a command; `scopes` lists them"),
    ),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "show", request, |request, trail| async move {
        let [scope, reveal] = request.query_parameters(["scope", "reveal"])?;
        let reveal = request.reveal(&app, reveal)?;
        let tenant =
            find_tenant(&app, &request, (request.segment(1), request.segment(2)), scope).await?;
        let commands = app.commands(&tenant);
        let looked = commands.look(Operation(request.segment(1)), request.segment(2));
        let view = app.call_store(looked).await?.ok_or_else(command_missing)?;
        trail.set_fence(&view);
        let subject = command_subject(&request, &tenant, request.segment(2));
        trail.begin_reveal(reveal, subject).await?;
        Ok(json_response(StatusCode::OK, &OperatorCommand::new(view, reveal)))
    })
    .await
}

/// The command of a request, for the audit log.
fn command_subject(request: &ApiRequest, tenant: &Tenant, key: &str) -> AuditSubject {
    AuditSubject {
        operation: Some(request.segment(1).to_owned()),
        key: Some(key.to_owned()),
        scope: tenant.as_str().split_once('/').map(|(_, scope)| scope.to_owned()),
        ..AuditSubject::new("command")
    }
}

/// Settle a command that failed or whose outcome is unknown with the response that it had.
#[utoipa::path(
    put, path = "/v1/operator/commands/{operation}/{key}", operation_id = "settle_command", tag = "operator",
    params(
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list; may be left out if only one caller has such a command"),
        ("by" = Option<String>, Query, description = "`hash`: the path has the `key_hash` of the list in place of the key"),
        ("after" = Option<String>, Query, description = "With `by=hash`: the `after` of the page that shows the row, which makes the search for it short"),
        ("state" = Option<String>, Query, description = "With `by=hash`: the `state` of the list that shows the command"),
    ),
    request_body = SettleCommand,
    responses(
        (status = 200, body = CompletedState, description = "Callers get this response from now on; also if the same response is sent again"),
        (status = 404, description = "`command-missing`"),
        (status = 409, description = "`scope-ambiguous`; `in-progress`: the owner is presumed alive; `already-completed`: the command has another response. Nothing was changed"),
    ),
)]
pub(crate) async fn settle(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "settle", request, |request, trail| async move {
        let mut fields = request.json_fields()?;
        // The proxy replays this as the final response, which a 1xx is not.
        let response = read_response(&mut fields, 200..=599)?;
        fields.finish()?;
        decide(&app, &request, &OperatorDecision::Settle(response), &trail).await?;
        Ok(completed_response())
    })
    .await
}

/// Release a command that failed or whose outcome is unknown: the next begin is a first attempt.
#[utoipa::path(
    delete, path = "/v1/operator/commands/{operation}/{key}", operation_id = "release_command", tag = "operator",
    params(
        ("scope" = Option<String>, Query, min_length = 1, max_length = 64, description = "The `scope` of the list; may be left out if only one caller has such a command"),
        ("by" = Option<String>, Query, description = "`hash`: the path has the `key_hash` of the list in place of the key"),
        ("after" = Option<String>, Query, description = "With `by=hash`: the `after` of the page that shows the row, which makes the search for it short"),
        ("state" = Option<String>, Query, description = "With `by=hash`: the `state` of the list that shows the command"),
    ),
    responses(
        (status = 204, description = "The command is forgotten; only its fence keeps growing"),
        (status = 404, description = "`command-missing`"),
        (status = 409, description = "`scope-ambiguous`; `in-progress`: the owner is presumed alive; `already-completed`: the command has its response. Nothing was changed"),
    ),
)]
pub(crate) async fn release(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "release", request, |request, trail| async move {
        decide(&app, &request, &OperatorDecision::Release, &trail).await?;
        Ok(no_content())
    })
    .await
}

async fn decide(
    app: &AppState,
    request: &ApiRequest,
    decision: &OperatorDecision,
    trail: &AuditTrail,
) -> Result<(), Problem> {
    let [scope, by, state, after] = request.query_parameters(["scope", "by", "state", "after"])?;
    let (tenant, key) = if by_hash::is_by_hash(by)? {
        let status = state.map(parse_state).transpose()?;
        let query = claim_query(app, request, KeyKind::Command, status, after, None)?;
        let query = ClaimQuery { scope: Some(request.segment(1).into()), ..query };
        let key = by_hash::find_key(app, query, request.segment(2)).await?;
        let key = key.ok_or_else(command_missing)?;
        (key.tenant().clone(), key.name().to_owned())
    } else if state.is_some() || after.is_some() {
        return Err(Problem::invalid("query parameters `state` and `after` need `by=hash`"));
    } else {
        let named = (request.segment(1), request.segment(2));
        (find_tenant(app, request, named, scope).await?, named.1.to_owned())
    };
    let commands = app.commands(&tenant);
    let (operation, key) = (Operation(request.segment(1)), key.as_str());
    let before = app.call_store(commands.look(operation, key)).await?;
    let before = before.ok_or_else(command_missing)?;
    trail.set_fence(&before);
    let action = match decision {
        OperatorDecision::Settle(_) => "settle",
        OperatorDecision::Release => "release",
    };
    trail.begin(action, command_subject(request, &tenant, key)).await?;
    let deciding = async {
        match commands.decide_as_operator(operation, key, decision).await? {
            OperatorOutcome::Done => Ok(()),
            OperatorOutcome::Missing => Err(command_missing()),
            OperatorOutcome::Pending => Err(in_progress(&before)),
            OperatorOutcome::Completed => {
                // A repeated decision whose first response was lost succeeds like the first.
                let after = commands.look(operation, key).await?;
                let repeated = after.is_some_and(|after| has_response(&after, decision));
                let text = "the command has a response; nothing was changed";
                if repeated {
                    Ok(())
                } else {
                    Err(Problem::new(ProblemKind::AlreadyCompleted, text))
                }
            }
        }
    };
    let decided = app.call_store(deciding).await;
    app.claim_counter.note_change(&request.tenant);
    decided
}

fn has_response(view: &CommandView, decision: &OperatorDecision) -> bool {
    matches!(
        (&view.state, decision),
        (CommandState::Completed { response, .. }, OperatorDecision::Settle(given))
            if response == given
    )
}

fn in_progress(view: &CommandView) -> Problem {
    let text = "the owner of the command is presumed alive; nothing was changed";
    let problem = Problem::new(ProblemKind::InProgress, text);
    match view.state {
        CommandState::Pending { lease_left } => problem.retry_after(lease_left),
        _ => problem,
    }
}

/// The tenant of the caller, or the scope of it that the query names. Without a name, the only scope that
/// knows the command: it is searched for where the tenant itself does not know the command.
async fn find_tenant(
    app: &AppState,
    request: &ApiRequest,
    (operation, key): (&str, &str),
    scope: Option<&str>,
) -> Result<Tenant, Problem> {
    if let Some(scope) = scope {
        return Ok(request.tenant.scoped(scope)?);
    }
    let own = app.commands(&request.tenant);
    if app.call_store(own.look(Operation(operation), key)).await?.is_some() {
        return Ok(request.tenant.clone());
    }
    let mut query = claim_query(app, request, KeyKind::Command, None, None, Some("1000"))?;
    // The SQL stores seek to the commands of an operation, however many others there are.
    query.scope = Some(operation.into());
    let until = Instant::now() + max_steps_time(app);
    let mut found: Vec<Tenant> = Vec::new();
    let searching = async {
        loop {
            let page = app.store.list(&query).await?;
            for listed in page.claims {
                let is_it = listed.key.scope() == operation && listed.key.name() == key;
                if is_it && !found.contains(listed.key.tenant()) {
                    found.push(listed.key.tenant().clone());
                }
            }
            match page.next {
                None => return Ok(true),
                Some(_) if Instant::now() >= until => return Ok::<_, StoreError>(false),
                next => query.after = next,
            }
        }
    };
    let searched_all = app.call_store(searching).await?;
    match (found.as_slice(), searched_all) {
        ([], true) => Ok(request.tenant.clone()),
        ([only], true) => Ok(only.clone()),
        ([_, _, ..], _) => {
            let scopes: Vec<_> =
                found.iter().filter_map(|tenant| tenant.as_str().split_once('/')).collect();
            let scopes: Vec<_> = scopes.into_iter().map(|(_, scope)| scope).collect();
            let text = format!(
                "several callers have a command with this operation and key; name one with \
                 `scope`: {}",
                scopes.join(", ")
            );
            Err(Problem::new(ProblemKind::ScopeAmbiguous, text).with("scopes", scopes))
        }
        (_, false) => {
            let text = "there are too many commands to search for its scope; name it with `scope`";
            Err(Problem::invalid(text))
        }
    }
}

/// Delete expired claims, records, jobs and done items of every tenant. Readers do not see them anyway; this frees
/// their space, as the server does periodically on its own.
#[utoipa::path(
    post, path = "/v1/operator/sweep", operation_id = "sweep", tag = "operator",
    request_body(content = Option<SweepRequest>),
    responses((status = 200, body = SweepResult, description = "How many were deleted; repeat while `more` is true")),
)]
pub(crate) async fn sweep(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "sweep", request, |request, _| async move {
        request.expect_no_query()?;
        let mut fields = request.json_fields()?;
        let at_most = fields.number("at_most", 1..=1_000_000)?.unwrap_or(DEFAULT_SWEEP);
        fields.finish()?;
        let swept = hapax::sweep(&*app.store, at_most, max_steps_time(&app));
        let Swept { count, more } = app.call_store(swept).await?;
        Ok(json_response(StatusCode::OK, &SweepResult { swept: count, more }))
    })
    .await
}

/// How long further steps may be started, so that the last one ends within the timeout of the request.
fn max_steps_time(app: &AppState) -> Duration {
    app.settings.store_timeout.min(Duration::from_secs(1))
}
