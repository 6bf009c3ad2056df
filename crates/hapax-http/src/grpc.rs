//! The outcome of a gRPC call, which is not in the HTTP status: that is 200 for errors too.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};

/// Whether a response is gRPC. `application/grpc-web` is not: its trailers are inside its body.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
        && matches!(kind.get(GRPC.len()), None | Some(b'+' | b';' | b' '))
}

/// The HTTP status that the `grpc-status` of these headers or trailers corresponds to, after the
/// table in `google/rpc/code.proto`; `None` where there is no `grpc-status`.
pub(crate) fn http_status(headers: &HeaderMap) -> Option<StatusCode> {
    let code = headers.get("grpc-status")?.to_str().ok().and_then(|code| code.trim().parse().ok());
    Some(match code {
        Some(0) => StatusCode::OK,
        Some(3 | 9 | 11) => StatusCode::BAD_REQUEST,
        Some(16) => StatusCode::UNAUTHORIZED,
        Some(7) => StatusCode::FORBIDDEN,
        Some(5) => StatusCode::NOT_FOUND,
        Some(6 | 10) => StatusCode::CONFLICT,
        Some(8) => StatusCode::TOO_MANY_REQUESTS,
        Some(12) => StatusCode::NOT_IMPLEMENTED,
        Some(14) => StatusCode::SERVICE_UNAVAILABLE,
        // A cancelled call may have acted, as one that exceeded its deadline may have. The table has
        // 499 for it, which would be stored.
        Some(1 | 4) => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    })
}
