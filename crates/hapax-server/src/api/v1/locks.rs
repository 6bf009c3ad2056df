//! `/v1/locks`

use std::time::Duration;

use hapax::millis;

use super::prelude::*;
use super::renewal::{RenewLock, RenewedLock, read_renewal};

/// The request to take a lock. Every field has a default.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct TakeLock {
    /// How long the lock lasts without renewal.
    #[schema(default = 5000, minimum = 1, maximum = 3_600_000, nullable = false)]
    ttl_ms: Option<u64>,
    /// How long to wait if the lock is held.
    #[schema(default = 0, minimum = 0, maximum = 60_000, nullable = false)]
    wait_ms: Option<u64>,
    /// A name of the owner that operators see beside it; never anything that identifies a person. By
    /// default the name of the node.
    #[schema(min_length = 1, max_length = 64, nullable = false)]
    label: Option<String>,
}

/// The lock that was taken.
#[derive(Serialize, ToSchema)]
pub(crate) struct TakenLock {
    /// The secret of the lock; its bearer may renew and release it.
    token: String,
    /// Grows with every grant of the same key; pass it to the systems that you write to.
    fence: u64,
    /// How long the lock lasts without renewal.
    ttl_ms: u64,
}

/// The state of a lock.
#[derive(Serialize, ToSchema)]
pub(crate) struct LockState {
    /// Whether the lock is held.
    held: bool,
    /// The fence of the holder; null if the lock is free or held by a foreign writer.
    #[schema(required)]
    fence: Option<u64>,
    /// How long the lock lasts without renewal; null if it is free.
    #[schema(required)]
    expires_in_ms: Option<u64>,
}

/// Take a lock.
#[utoipa::path(
    post, path = "/v1/locks/{key}", operation_id = "take_lock", tag = "locks",
    request_body(content = Option<TakeLock>),
    responses(
        (status = 201, body = TakenLock, description = "The lock is taken"),
        (status = 409, description = "`lock-held`; `retry_after_ms` is when the lock expires unless it is renewed"),
    ),
)]
pub(crate) async fn take(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let mut fields = request.json_fields()?;
    let ttl = fields.millis("ttl_ms", LEASE)?.unwrap_or(app.settings.lock_ttl);
    let wait = fields.millis("wait_ms", WAIT)?.unwrap_or(Duration::ZERO);
    let label = fields.label()?;
    fields.finish()?;
    let mut locks = app.locks(&request.tenant);
    if let Some(label) = label {
        locks = locks.label(label);
    }
    let ticket = app.call_store_waiting(wait, locks.take(request.segment(0), ttl, wait)).await?;
    let (token, fence) = (ticket.token.as_str().to_owned(), ticket.fence.0);
    Ok(json_response(StatusCode::CREATED, &TakenLock { token, fence, ttl_ms: millis(ttl) }))
}

/// Renew a lock.
#[utoipa::path(
    put, path = "/v1/locks/{key}", operation_id = "renew_lock", tag = "locks",
    request_body = RenewLock,
    responses(
        (status = 200, body = RenewedLock, description = "The lock lasts `ttl_ms` from now"),
        (status = 409, description = "`lock-lost`"),
    ),
)]
pub(crate) async fn renew(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let (token, ttl) = read_renewal(&request, "ttl_ms", app.settings.lock_ttl)?;
    let locks = app.locks(&request.tenant);
    let fence = app.call_store(locks.renew(request.segment(0), &token, ttl)).await?;
    Ok(RenewedLock::response(fence, ttl))
}

/// Release a lock.
#[utoipa::path(
    delete, path = "/v1/locks/{key}", operation_id = "release_lock", tag = "locks",
    params(("Hapax-Token" = String, Header, description = "The secret of the lock")),
    responses(
        (status = 204, description = "The lock is free"),
        (status = 409, description = "`lock-lost`"),
    ),
)]
pub(crate) async fn release(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let token = request.token_header()?;
    let locks = app.locks(&request.tenant);
    app.call_store(locks.release(request.segment(0), &token)).await?;
    Ok(no_content())
}

/// Look at a lock.
#[utoipa::path(
    get, path = "/v1/locks/{key}", operation_id = "look_at_lock", tag = "locks",
    responses((status = 200, body = LockState, description = "The state of the lock, without its token")),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let locks = app.locks(&request.tenant);
    let view = app.call_store(locks.look(request.segment(0))).await?;
    let fence = view.fence.map(|fence| fence.0);
    let expires_in_ms = view.expires_in.map(millis);
    Ok(json_response(StatusCode::OK, &LockState { held: view.held, fence, expires_in_ms }))
}
