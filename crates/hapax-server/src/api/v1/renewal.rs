//! Renewals of commands, messages and locks: a token and a duration in, the fence and the duration out.

use std::time::Duration;

use axum::response::Response;
use hapax::{Fence, Token, millis};

use super::prelude::*;

/// The lease of a renewal that does not say: that of a begin.
pub(super) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The request to renew the lease of a command or a message.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct RenewLease {
    /// The secret of the command or message.
    #[schema(min_length = 1, max_length = 255)]
    token: String,
    /// How long the owner is presumed alive from now on.
    #[schema(default = 30_000, minimum = 1, maximum = 3_600_000, nullable = false)]
    lease_ms: Option<u64>,
}

/// A command or a message whose lease was renewed.
#[derive(Serialize, ToSchema)]
pub(crate) struct RenewedLease {
    /// The fence of the attempt, unchanged.
    fence: u64,
    /// How long the lease lasts from now on.
    lease_ms: u64,
}

impl RenewedLease {
    pub(super) fn response(fence: Fence, lease: Duration) -> Response {
        json_response(StatusCode::OK, &Self { fence: fence.0, lease_ms: millis(lease) })
    }
}

/// The request to renew a lock.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct RenewLock {
    /// The secret of the lock.
    #[schema(min_length = 1, max_length = 255)]
    token: String,
    /// How long the lock lasts from now.
    #[schema(default = 5000, minimum = 1, maximum = 3_600_000, nullable = false)]
    ttl_ms: Option<u64>,
}

/// The lock that was renewed.
#[derive(Serialize, ToSchema)]
pub(crate) struct RenewedLock {
    /// The fence of the lock.
    fence: u64,
    /// How long the lock lasts from now.
    ttl_ms: u64,
}

impl RenewedLock {
    pub(super) fn response(fence: Fence, ttl: Duration) -> Response {
        json_response(StatusCode::OK, &Self { fence: fence.0, ttl_ms: millis(ttl) })
    }
}

/// Reads a renewal, whose duration is in `field`.
pub(super) fn read_renewal(
    request: &ApiRequest,
    field: &str,
    default: Duration,
) -> Result<(Token, Duration), Problem> {
    request.expect_no_query()?;
    let mut fields = request.json_fields()?;
    let token = fields.token()?;
    let duration = fields.millis(field, LEASE)?.unwrap_or(default);
    fields.finish()?;
    Ok((token, duration))
}
