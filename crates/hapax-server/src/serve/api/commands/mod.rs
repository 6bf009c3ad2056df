//! `/v1/commands`

pub(super) mod schema;

use std::ops::RangeInclusive;

use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::command::{Begun, CommandConfig, CommandState, CommandView};
use hapax::{Fingerprint, OnUnknown, Operation, Token, millis};
use hyper::StatusCode;

use schema::{
    BeginCommand, BegunCommand, CommandShown, CompleteCommand, CompletedCommand, CompletedState,
    ShownResponse, read_response, shown_response,
};

use super::locks::{LEASE, TOKEN, WAIT};
use crate::serve::app::AppState;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::ApiRequest;
use crate::serve::request::fields::{JsonFields, required};
use crate::serve::response::{ApiResult, json_response};

/// How long a response may be kept, in milliseconds.
pub(super) const RETENTION: RangeInclusive<u64> = 1..=366 * 86_400_000;

/// Begin a command.
#[utoipa::path(
    post, path = "/v1/commands/{operation}/{key}", operation_id = "begin_command", tag = "commands",
    params(("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255)),
    request_body(content = Option<BeginCommand>),
    responses(
        (status = 201, body = BegunCommand, description = "Run the command, then complete it (PUT) or fail it (DELETE)"),
        (status = 200, body = CompletedCommand, description = "The command ran before; this is its response"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`in-progress`: another attempt is running; `outcome-unknown`: the owner of the last attempt is gone and may or may not have acted"),
        (status = 422, body = ProblemDocument, content_type = "application/problem+json", description = "`key-reused`: the fingerprints differ"),
    ),
)]
pub(crate) async fn begin(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let (config, wait) = parse_begin(request.json_fields()?)?;
    let commands = app.commands(&request.tenant);
    let begun = commands.begin(Operation(request.segment(0)), request.segment(1), &config);
    match app.call_store_waiting(wait, begun).await? {
        Begun::Granted { ticket, attempt } => {
            let (token, fence) = (ticket.token.as_str().to_owned(), ticket.fence.0);
            Ok(json_response(
                StatusCode::CREATED,
                &BegunCommand { state: "pending", token, fence, attempt },
            ))
        }
        Begun::Completed { response, expires_in } => {
            let response = shown_response(&response);
            let expires_in_ms = millis(expires_in);
            let shown = CompletedCommand { state: "completed", response, expires_in_ms };
            Ok(json_response(StatusCode::OK, &shown))
        }
        Begun::InProgress { retry_after } => {
            let text = "another attempt is running; try again later, or wait with `wait_ms`";
            Err(Problem::new(ProblemKind::InProgress, text).retry_after(retry_after))
        }
        Begun::KeyReused => Err(Problem::new(
            ProblemKind::KeyReused,
            "the key was used before with another fingerprint",
        )),
        Begun::OutcomeUnknown { since } => Err(Problem::new(
            ProblemKind::OutcomeUnknown,
            format!(
                "the lease of the last attempt expired {} ms ago; it may or may not have acted. \
                 `on_unknown: rerun` runs the command again",
                millis(since)
            ),
        )),
    }
}

fn parse_begin(mut fields: JsonFields) -> Result<(CommandConfig, Duration), Problem> {
    let fingerprint = fields.short_text("fingerprint", 0..=Fingerprint::MAX)?;
    let mut config =
        CommandConfig::default().fingerprint(fingerprint.and_then(|text| Fingerprint::new(&text)));
    if let Some(lease) = fields.millis("lease_ms", LEASE)? {
        config = config.lease(lease);
    }
    if let Some(retention) = fields.millis("retention_ms", RETENTION)? {
        config = config.retention(retention);
    }
    let wait = fields.millis("wait_ms", WAIT)?.unwrap_or_default();
    let config = config.wait(wait).on_unknown(match fields.text("on_unknown")?.as_deref() {
        None | Some("refuse") => OnUnknown::Refuse,
        Some("rerun") => OnUnknown::TakeOver,
        Some(_) => return Err(Problem::invalid("field `on_unknown` takes refuse or rerun")),
    });
    fields.finish()?;
    Ok((config, wait))
}

/// Complete a command with its response.
#[utoipa::path(
    put, path = "/v1/commands/{operation}/{key}", operation_id = "complete_command", tag = "commands",
    params(("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255)),
    request_body = CompleteCommand,
    responses(
        (status = 200, body = CompletedState, description = "The response is kept; also if the same completion is repeated"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn complete(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let mut fields = request.json_fields()?;
    let token = required("token", fields.short_text("token", TOKEN)?)?;
    let response = read_response(&mut fields, 100..=599)?;
    fields.finish()?;
    let (commands, token) = (app.commands(&request.tenant), Token::presented(&token));
    let completed =
        commands.complete(Operation(request.segment(0)), request.segment(1), &token, &response);
    app.call_store(completed).await?;
    Ok(json_response(StatusCode::OK, &CompletedState { state: "completed" }))
}

/// Fail a command: it may be retried.
#[utoipa::path(
    delete, path = "/v1/commands/{operation}/{key}", operation_id = "fail_command", tag = "commands",
    params(
        ("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255),
        ("Hapax-Token" = String, Header, description = "The secret of the command"),
    ),
    responses(
        (status = 204, description = "The command failed; the next begin is the next attempt"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn fail(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let token = request.token_header()?;
    let commands = app.commands(&request.tenant);
    let failed = commands.fail(Operation(request.segment(0)), request.segment(1), &token);
    app.call_store(failed).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Show a command.
#[utoipa::path(
    get, path = "/v1/commands/{operation}/{key}", operation_id = "look_at_command", tag = "commands",
    params(("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255)),
    responses(
        (status = 200, body = CommandShown, description = "The state of the command, without its token"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`command-missing`"),
    ),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let commands = app.commands(&request.tenant);
    let view =
        app.call_store(commands.look(Operation(request.segment(0)), request.segment(1))).await?;
    let view = view.ok_or_else(command_missing)?;
    Ok(json_response(StatusCode::OK, &command_shown(view)))
}

/// The problem for a command that does not exist.
pub(super) fn command_missing() -> Problem {
    Problem::new(ProblemKind::CommandMissing, "no command with this operation and key is known")
}

/// The state of a command, for a response.
pub(super) fn command_shown(view: CommandView) -> CommandShown {
    let mut shown = CommandShown {
        attempt: view.attempt,
        fence: view.fence.map(|fence| fence.0),
        begun_ms_ago: view.begun_ago.map(millis),
        ..CommandShown::default()
    };
    match view.state {
        CommandState::Pending { lease_left } => {
            shown.state = "pending";
            shown.lease_expires_in_ms = Some(millis(lease_left));
        }
        CommandState::Unknown { since, expires_in } => {
            shown.state = "unknown";
            shown.unknown_for_ms = Some(millis(since));
            shown.expires_in_ms = Some(millis(expires_in));
        }
        CommandState::Completed { response, expires_in } => {
            shown.state = "completed";
            let ShownResponse { status, headers, body, body_base64 } = shown_response(&response);
            (shown.status, shown.headers) = (Some(status), Some(headers));
            (shown.body, shown.body_base64) = (body, body_base64);
            shown.expires_in_ms = Some(millis(expires_in));
        }
        CommandState::Failed { expires_in } => {
            shown.state = "failed";
            shown.expires_in_ms = Some(millis(expires_in));
        }
    }
    shown
}
