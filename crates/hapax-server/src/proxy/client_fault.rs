//! The response to a client whose upload broke off while it was being forwarded.

use std::error::Error;

use hapax_http::{Problem, ProblemKind};
use hyper::Response;

use super::idle_timeout::is_idle;
use super::upstream_body::UpstreamBody;
use super::upstream_failure::problem_response;

/// A fault of the client: neither the upstream's failure nor counted as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientFault {
    /// The client stopped sending.
    TimedOut,
    /// The body is malformed, or the client is gone.
    Broken,
}

impl ClientFault {
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        if is_idle(error) { Self::TimedOut } else { Self::Broken }
    }

    /// Only requests without a key are forwarded before they have arrived, so that a retry would not
    /// be recognised.
    pub(crate) fn response(self, route: &str) -> Response<UpstreamBody> {
        tracing::debug!(route, fault = ?self, "a client broke its upload off");
        problem_response(&match self {
            Self::TimedOut => Problem::new(
                ProblemKind::RequestTimeout,
                "the request body did not arrive in time; the service has seen a part of it",
            )
            .not_retryable(),
            Self::Broken => Problem::invalid(
                "the request body is malformed or ended early; the service has seen a part of it",
            ),
        })
    }
}
