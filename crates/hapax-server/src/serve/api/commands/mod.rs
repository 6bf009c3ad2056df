//! `/v1/commands`

pub(super) mod schema;

use std::ops::RangeInclusive;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::command::{Begin, Begun, CommandState, CommandView};
use hapax::{Fingerprint, OnUnknown, Token, millis};
use hyper::StatusCode;

use schema::{
    BeginCommand, BegunCommand, CommandShown, CompleteCommand, Completed, CompletedCommand,
    ShownResponse, read_response, shown_response,
};

use super::locks::{LEASE, TOKEN, WAIT};
use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::Call;
use crate::serve::request::fields::{Fields, required};
use crate::serve::response::{Answer, json};

/// How long an answer may be kept, in milliseconds.
pub(super) const RETENTION: RangeInclusive<u64> = 1..=366 * 86_400_000;

/// Ask to run a command.
#[utoipa::path(
    post, path = "/v1/commands/{operation}/{key}", operation_id = "begin_command", tag = "commands",
    params(("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255)),
    request_body(content = Option<BeginCommand>),
    responses(
        (status = 201, body = BegunCommand, description = "Run it, then complete it (PUT) or fail it (DELETE)"),
        (status = 200, body = CompletedCommand, description = "It ran before; this is the answer"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`in-progress`: it is being run; `outcome-unknown`: its owner went away and may or may not have acted"),
        (status = 422, body = ProblemDocument, content_type = "application/problem+json", description = "`key-reused`: the fingerprints differ"),
    ),
)]
pub(crate) async fn begin(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let begin = how(call.fields()?)?;
    let commands = app.commands(call.tenant.clone());
    let begun = commands.begin(call.segment(0), call.segment(1), &begin);
    match app.ask(begin.wait, begun).await? {
        Begun::Granted { ticket, attempt } => {
            let (token, fence) = (ticket.token.as_str().to_owned(), ticket.fence.0);
            Ok(json(StatusCode::CREATED, &BegunCommand { state: "pending", token, fence, attempt }))
        }
        Begun::Completed { response, expires_in } => {
            let response = shown_response(&response);
            let expires_in_ms = millis(expires_in);
            let shown = CompletedCommand { state: "completed", response, expires_in_ms };
            Ok(json(StatusCode::OK, &shown))
        }
        Begun::InProgress { retry_after } => {
            let text = "another attempt is under way; ask again, or wait with `wait_ms`";
            Err(Problem::new(ProblemKind::InProgress, text).retry_after(retry_after))
        }
        Begun::KeyReused => Err(Problem::new(
            ProblemKind::KeyReused,
            "the key was used before with another fingerprint",
        )),
        Begun::OutcomeUnknown { since } => Err(Problem::new(
            ProblemKind::OutcomeUnknown,
            format!(
                "the lease of the last attempt ran out {} ms ago; it may or may not have acted. \
                 `on_unknown: rerun` runs it again",
                millis(since)
            ),
        )),
    }
}

fn how(mut fields: Fields) -> Result<Begin, Problem> {
    let fingerprint = fields.short_text("fingerprint", 0..=Fingerprint::MAX)?;
    let defaults = Begin::default();
    let begin = Begin {
        fingerprint: fingerprint.and_then(|text| Fingerprint::new(&text)),
        lease: fields.millis("lease_ms", LEASE)?.unwrap_or(defaults.lease),
        retention: fields.millis("retention_ms", RETENTION)?.unwrap_or(defaults.retention),
        wait: fields.millis("wait_ms", WAIT)?.unwrap_or(defaults.wait),
        on_unknown: match fields.text("on_unknown")?.as_deref() {
            None | Some("refuse") => OnUnknown::Refuse,
            Some("rerun") => OnUnknown::TakeOver,
            Some(_) => return Err(Problem::invalid("field `on_unknown` takes refuse or rerun")),
        },
    };
    fields.finish()?;
    Ok(begin)
}

/// Complete a command with its answer.
#[utoipa::path(
    put, path = "/v1/commands/{operation}/{key}", operation_id = "complete_command", tag = "commands",
    params(("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255)),
    request_body = CompleteCommand,
    responses(
        (status = 200, body = Completed, description = "It is kept; also where the same completion comes again"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn complete(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let mut fields = call.fields()?;
    let token = required("token", fields.short_text("token", TOKEN)?)?;
    let response = read_response(&mut fields, 100..=599)?;
    fields.finish()?;
    let (commands, token) = (app.commands(call.tenant.clone()), Token::presented(&token));
    let completed = commands.complete(call.segment(0), call.segment(1), &token, &response);
    app.ask(Duration::ZERO, completed).await?;
    Ok(json(StatusCode::OK, &Completed { state: "completed" }))
}

/// Give a command back as failed: it may be retried.
#[utoipa::path(
    delete, path = "/v1/commands/{operation}/{key}", operation_id = "fail_command", tag = "commands",
    params(
        ("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255),
        ("Hapax-Token" = String, Header, description = "The secret of the command"),
    ),
    responses(
        (status = 204, description = "It failed; the next begin is the next attempt"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn fail(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let token = call.token()?;
    let commands = app.commands(call.tenant.clone());
    let failed = commands.fail(call.segment(0), call.segment(1), &token);
    app.ask(Duration::ZERO, failed).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Look at a command.
#[utoipa::path(
    get, path = "/v1/commands/{operation}/{key}", operation_id = "look_at_command", tag = "commands",
    params(("operation" = String, Path, min_length = 1, max_length = 255), ("key" = String, Path, min_length = 1, max_length = 255)),
    responses(
        (status = 200, body = CommandShown, description = "How it stands; never the token"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`command-missing`"),
    ),
)]
pub(crate) async fn look(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let commands = app.commands(call.tenant.clone());
    let view = app.ask(Duration::ZERO, commands.look(call.segment(0), call.segment(1))).await?;
    let view = view.ok_or_else(missing)?;
    Ok(json(StatusCode::OK, &shown(view)))
}

/// 404.
pub(super) fn missing() -> Problem {
    Problem::new(ProblemKind::CommandMissing, "nothing is known about it")
}

/// How a command stands, as it goes out.
pub(super) fn shown(view: CommandView) -> CommandShown {
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
