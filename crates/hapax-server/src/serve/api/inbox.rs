//! `/v1/inbox`

use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::Token;
use hapax::inbox::{Receive, Received};
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::commands::RETENTION;
use super::commands::schema::Completed;
use super::locks::{LEASE, TOKEN};
use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::Call;
use crate::serve::request::fields::required;
use crate::serve::response::{Answer, json};

/// How a message is received. Every field has a default.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct ReceiveMessage {
    /// How long the consumer is believed to be at work without settling.
    #[schema(default = 30_000, minimum = 1, maximum = 3_600_000, nullable = false)]
    lease_ms: Option<u64>,
    /// How long the message is recognised; longer than anybody delivers it again.
    #[schema(
        default = 2_592_000_000_u64,
        minimum = 1,
        maximum = 31_622_400_000_u64,
        nullable = false
    )]
    retention_ms: Option<u64>,
}

/// A message that is new, or whose last consumer went away.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewMessage {
    /// The secret; whoever presents it may settle the message or give it back.
    token: String,
    /// Grows with every attempt; pass it on to what you write to.
    fence: u64,
    /// 1 for the first attempt.
    attempt: u32,
}

/// A message that had its effect before.
#[derive(Serialize, ToSchema)]
pub(crate) struct KnownMessage {
    #[schema(example = true)]
    duplicate: bool,
}

/// How a message is settled.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct SettleMessage {
    /// The secret of the message.
    #[schema(min_length = 1, max_length = 255)]
    token: String,
}

/// Ask whether a message is new, and take it if so.
#[utoipa::path(
    post, path = "/v1/inbox/{consumer}/{message_id}", operation_id = "receive_message", tag = "inbox",
    params(("consumer" = String, Path, min_length = 1, max_length = 255), ("message_id" = String, Path, min_length = 1, max_length = 255)),
    request_body(content = Option<ReceiveMessage>),
    responses(
        (status = 201, body = NewMessage, description = "Act, then settle it (PUT) or give it back (DELETE)"),
        (status = 200, body = KnownMessage, description = "It had its effect before: acknowledge it and do nothing"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`in-progress`: another delivery of it is being handled"),
    ),
)]
pub(crate) async fn receive(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let mut fields = call.fields()?;
    let defaults = Receive::default();
    let receive = Receive {
        lease: fields.millis("lease_ms", LEASE)?.unwrap_or(defaults.lease),
        retention: fields.millis("retention_ms", RETENTION)?.unwrap_or(defaults.retention),
    };
    fields.finish()?;
    let inbox = app.inbox(call.tenant.clone());
    let received = inbox.begin(call.segment(0), call.segment(1), &receive);
    match app.ask(Duration::ZERO, received).await? {
        Received::First { ticket, attempt } => {
            let (token, fence) = (ticket.token.as_str().to_owned(), ticket.fence.0);
            Ok(json(StatusCode::CREATED, &NewMessage { token, fence, attempt }))
        }
        Received::Duplicate => Ok(json(StatusCode::OK, &KnownMessage { duplicate: true })),
        Received::InProgress { retry_after } => {
            let text = "another delivery of it is being handled; ask again";
            Err(Problem::new(ProblemKind::InProgress, text).retry_after(retry_after))
        }
    }
}

/// Settle a message: it had its effect, and is a duplicate from now on.
#[utoipa::path(
    put, path = "/v1/inbox/{consumer}/{message_id}", operation_id = "settle_message", tag = "inbox",
    params(("consumer" = String, Path, min_length = 1, max_length = 255), ("message_id" = String, Path, min_length = 1, max_length = 255)),
    request_body = SettleMessage,
    responses(
        (status = 200, body = Completed, description = "It is settled; also where it was settled with this token before"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn settle(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let mut fields = call.fields()?;
    let token = required("token", fields.short_text("token", TOKEN)?)?;
    fields.finish()?;
    let (inbox, token) = (app.inbox(call.tenant.clone()), Token::presented(&token));
    app.ask(Duration::ZERO, inbox.settle(call.segment(0), call.segment(1), &token)).await?;
    Ok(json(StatusCode::OK, &Completed { state: "completed" }))
}

/// Give a message back: it had no effect, and whoever gets it next is the next attempt.
#[utoipa::path(
    delete, path = "/v1/inbox/{consumer}/{message_id}", operation_id = "give_message_back", tag = "inbox",
    params(
        ("consumer" = String, Path, min_length = 1, max_length = 255), ("message_id" = String, Path, min_length = 1, max_length = 255),
        ("Hapax-Token" = String, Header, description = "The secret of the message"),
    ),
    responses(
        (status = 204, description = "The next delivery is the next attempt"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn give_back(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let token = call.token()?;
    let inbox = app.inbox(call.tenant.clone());
    app.ask(Duration::ZERO, inbox.give_back(call.segment(0), call.segment(1), &token)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
