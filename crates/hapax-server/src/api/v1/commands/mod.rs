//! `/v1/commands`

pub(super) mod schema;

use std::time::Duration;

use hapax::command::{Begun, CommandConfig};
use hapax::{Fingerprint, OnUnknown, Operation, millis};

use schema::{
    BeginCommand, BegunCommand, CommandShown, CompleteCommand, CompletedCommand, CompletedState,
    completed_response, read_response, shown_response,
};

use super::prelude::*;
use super::renewal::{DEFAULT_LEASE, RenewLease, RenewedLease, read_renewal};

/// Begin a command.
#[utoipa::path(
    post, path = "/v1/commands/{operation}/{key}", operation_id = "begin_command", tag = "commands",
    request_body(content = Option<BeginCommand>),
    responses(
        (status = 201, body = BegunCommand, description = "Run the command, then complete it (PUT) or fail it (DELETE)"),
        (status = 200, body = CompletedCommand, description = "The command ran before; this is its response"),
        (status = 409, description = "`in-progress`: another attempt is running; `outcome-unknown`: the owner of the last attempt is gone and may or may not have acted"),
        (status = 422, description = "`key-reused`: the fingerprints differ"),
    ),
)]
pub(crate) async fn begin(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let (config, wait, label) = parse_begin(request.json_fields()?)?;
    let mut commands = app.commands(&request.tenant);
    if let Some(label) = label {
        commands = commands.label(label);
    }
    let begun = commands.begin(Operation(request.segment(0)), request.segment(1), &config);
    match app.call_store_waiting(wait, begun).await? {
        Begun::Granted { ticket, attempt } => {
            let (token, fence) = (ticket.token.as_str().to_owned(), ticket.fence.0);
            let begun = BegunCommand { state: "pending", token, fence, attempt };
            Ok(json_response(StatusCode::CREATED, &begun))
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
        Begun::KeyReused => {
            let text = "the key was used before with another fingerprint";
            Err(Problem::new(ProblemKind::KeyReused, text))
        }
        Begun::OutcomeUnknown { since } => {
            let text = format!(
                "the lease of the last attempt expired {} ms ago; it may or may not have acted. \
                 `on_unknown: rerun` runs the command again",
                millis(since)
            );
            Err(Problem::new(ProblemKind::OutcomeUnknown, text))
        }
    }
}

fn parse_begin(
    mut fields: JsonFields,
) -> Result<(CommandConfig, Duration, Option<String>), Problem> {
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
    let label = fields.label()?;
    fields.finish()?;
    Ok((config, wait, label))
}

/// Renew the lease of a command.
#[utoipa::path(
    patch, path = "/v1/commands/{operation}/{key}", operation_id = "renew_command", tag = "commands",
    request_body = RenewLease,
    responses(
        (status = 200, body = RenewedLease, description = "The command is yours for `lease_ms` from now; also after its lease expired, if nobody took it over"),
        (status = 409, description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn renew(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let (token, lease) = read_renewal(&request, "lease_ms", DEFAULT_LEASE)?;
    let (operation, key) = (Operation(request.segment(0)), request.segment(1));
    let commands = app.commands(&request.tenant);
    let fence = app.call_store(commands.renew(operation, key, &token, lease)).await?;
    Ok(RenewedLease::response(fence, lease))
}

/// Complete a command with its response.
#[utoipa::path(
    put, path = "/v1/commands/{operation}/{key}", operation_id = "complete_command", tag = "commands",
    request_body = CompleteCommand,
    responses(
        (status = 200, body = CompletedState, description = "The response is kept; also if the same completion is repeated"),
        (status = 409, description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn complete(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let mut fields = request.json_fields()?;
    let token = fields.token()?;
    let response = read_response(&mut fields, 100..=599)?;
    fields.finish()?;
    let commands = app.commands(&request.tenant);
    let (operation, key) = (Operation(request.segment(0)), request.segment(1));
    app.call_store(commands.complete(operation, key, &token, &response)).await?;
    Ok(completed_response())
}

/// Fail a command: it may be retried.
#[utoipa::path(
    delete, path = "/v1/commands/{operation}/{key}", operation_id = "fail_command", tag = "commands",
    params(
        ("Hapax-Token" = String, Header, description = "The secret of the command"),
    ),
    responses(
        (status = 204, description = "The command failed; the next begin is the next attempt"),
        (status = 409, description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn fail(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let token = request.token_header()?;
    let commands = app.commands(&request.tenant);
    let (operation, key) = (Operation(request.segment(0)), request.segment(1));
    app.call_store(commands.fail(operation, key, &token)).await?;
    Ok(no_content())
}

/// Show a command.
#[utoipa::path(
    get, path = "/v1/commands/{operation}/{key}", operation_id = "look_at_command", tag = "commands",
    responses(
        (status = 200, body = CommandShown, description = "The state of the command, without its token"),
        (status = 404, description = "`command-missing`"),
    ),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let commands = app.commands(&request.tenant);
    let view = commands.look(Operation(request.segment(0)), request.segment(1));
    let view = app.call_store(view).await?.ok_or_else(command_missing)?;
    Ok(json_response(StatusCode::OK, &CommandShown::new(view)))
}

pub(super) fn command_missing() -> Problem {
    Problem::new(ProblemKind::CommandMissing, "no command with this operation and key is known")
}
