//! `/v1/inbox`

use hapax::inbox::{InboxConfig, Received};

use super::commands::schema::{CompletedState, completed_response};
use super::prelude::*;
use super::renewal::{DEFAULT_LEASE, RenewLease, RenewedLease, read_renewal};

/// The request to receive a message. Every field has a default.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct ReceiveMessage {
    /// How long the consumer is presumed alive without settling.
    #[schema(default = 30_000, minimum = 1, maximum = 3_600_000, nullable = false)]
    lease_ms: Option<u64>,
    /// How long the message is recognised; choose longer than any redelivery may take.
    #[schema(
        default = 2_592_000_000_u64,
        minimum = 1,
        maximum = 31_622_400_000_u64,
        nullable = false
    )]
    retention_ms: Option<u64>,
    /// A name of the owner that operators see beside it; never anything that identifies a person. By
    /// default the name of the node.
    #[schema(min_length = 1, max_length = 64, nullable = false)]
    label: Option<String>,
}

/// A message that is new, or whose last consumer is gone.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewMessage {
    /// The secret of the message; its bearer may settle it or give it back.
    token: String,
    /// Grows with every attempt; pass it to the systems that you write to.
    fence: u64,
    /// 1 for the first attempt.
    attempt: u32,
}

/// A message that took effect before.
#[derive(Serialize, ToSchema)]
pub(crate) struct KnownMessage {
    #[schema(example = true)]
    duplicate: bool,
}

/// The request to settle a message.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct SettleMessage {
    /// The secret of the message.
    #[schema(min_length = 1, max_length = 255)]
    token: String,
}

/// Receive a message, if it is new.
#[utoipa::path(
    post, path = "/v1/inbox/{consumer}/{message_id}", operation_id = "receive_message", tag = "inbox",
    request_body(content = Option<ReceiveMessage>),
    responses(
        (status = 201, body = NewMessage, description = "The message is new: act, then settle it (PUT) or give it back (DELETE)"),
        (status = 200, body = KnownMessage, description = "The message took effect before: acknowledge it and do nothing"),
        (status = 409, description = "`in-progress`: another delivery of the message is being handled"),
    ),
)]
pub(crate) async fn receive(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let mut fields = request.json_fields()?;
    let mut config = InboxConfig::default();
    if let Some(lease) = fields.millis("lease_ms", LEASE)? {
        config = config.lease(lease);
    }
    if let Some(retention) = fields.millis("retention_ms", RETENTION)? {
        config = config.retention(retention);
    }
    let label = fields.label()?;
    fields.finish()?;
    let mut inbox = app.inbox(&request.tenant);
    if let Some(label) = label {
        inbox = inbox.label(label);
    }
    let received = inbox.begin(request.segment(0), request.segment(1), &config);
    match app.call_store(received).await? {
        Received::First { ticket, attempt } => {
            let (token, fence) = (ticket.token.as_str().to_owned(), ticket.fence.0);
            Ok(json_response(StatusCode::CREATED, &NewMessage { token, fence, attempt }))
        }
        Received::Duplicate => Ok(json_response(StatusCode::OK, &KnownMessage { duplicate: true })),
        Received::InProgress { retry_after } => {
            let text = "another delivery of the message is being handled; try again later";
            Err(Problem::new(ProblemKind::InProgress, text).retry_after(retry_after))
        }
    }
}

/// Renew the lease of a message.
#[utoipa::path(
    patch, path = "/v1/inbox/{consumer}/{message_id}", operation_id = "renew_message", tag = "inbox",
    request_body = RenewLease,
    responses(
        (status = 200, body = RenewedLease, description = "The message is yours for `lease_ms` from now; also after its lease expired, if nobody took it over"),
        (status = 409, description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn renew(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let (token, lease) = read_renewal(&request, "lease_ms", DEFAULT_LEASE)?;
    let (consumer, message) = (request.segment(0), request.segment(1));
    let inbox = app.inbox(&request.tenant);
    let fence = app.call_store(inbox.renew(consumer, message, &token, lease)).await?;
    Ok(RenewedLease::response(fence, lease))
}

/// Settle a message: it took effect, and later deliveries are duplicates.
#[utoipa::path(
    put, path = "/v1/inbox/{consumer}/{message_id}", operation_id = "settle_message", tag = "inbox",
    request_body = SettleMessage,
    responses(
        (status = 200, body = CompletedState, description = "The message is settled; also if it was settled with this token before"),
        (status = 409, description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn settle(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let mut fields = request.json_fields()?;
    let token = fields.token()?;
    fields.finish()?;
    let inbox = app.inbox(&request.tenant);
    app.call_store(inbox.settle(request.segment(0), request.segment(1), &token)).await?;
    Ok(completed_response())
}

/// Give a message back: it had no effect, and its next delivery is the next attempt.
#[utoipa::path(
    delete, path = "/v1/inbox/{consumer}/{message_id}", operation_id = "give_message_back", tag = "inbox",
    params(
        ("Hapax-Token" = String, Header, description = "The secret of the message"),
    ),
    responses(
        (status = 204, description = "The next delivery is the next attempt"),
        (status = 409, description = "`claim-lost`; nothing was changed"),
    ),
)]
pub(crate) async fn give_back(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let token = request.token_header()?;
    let inbox = app.inbox(&request.tenant);
    app.call_store(inbox.give_back(request.segment(0), request.segment(1), &token)).await?;
    Ok(no_content())
}
