//! The response for a request that the upstream did not answer, and whether a retry may run.

use std::time::Duration;

use hapax::metric_names;
use hapax_http::{Problem, ProblemKind, Verdict};
use hyper::Response;
use metrics::counter;

use super::upstream_body::UpstreamBody;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// There was no connection: not a byte of the request was sent.
    Unreachable,
    /// The connection ended before the response did.
    Cut,
    /// The upstream was idle for longer than its timeout.
    TimedOut,
}

impl UpstreamFailure {
    /// Only an error before there was a connection proves that nothing reached the upstream.
    pub(crate) fn from_client_error(error: &hapax_http_client::RequestError) -> Self {
        if error.is_connect() { Self::Unreachable } else { Self::Cut }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Cut => "cut",
            Self::TimedOut => "timeout",
        }
    }

    /// The response. `keyed` is whether a retry would be recognised, `reruns` whether it would run.
    pub(crate) fn response(self, route: &str, keyed: bool, reruns: bool) -> Response<UpstreamBody> {
        let reason = self.reason();
        counter!(metric_names::UPSTREAM_FAILURES, "route" => route.to_owned(), "reason" => reason)
            .increment(1);
        tracing::warn!(route, reason, "the upstream gave no response");
        let unknown = |kind| {
            let problem = Problem::new(kind, unknown_detail(keyed, reruns));
            // `--on-unknown rerun` makes a keyed retry run again.
            (if keyed && reruns { problem.retryable() } else { problem }, Verdict::Unknown)
        };
        let (problem, verdict) = match self {
            Self::Unreachable => (
                Problem::new(
                    ProblemKind::UpstreamUnreachable,
                    "nothing was sent to it, so nothing ran; the same request may be sent again",
                )
                .retry_after(Duration::from_secs(1)),
                Verdict::GiveBack,
            ),
            Self::Cut => unknown(ProblemKind::UpstreamFailed),
            Self::TimedOut => unknown(ProblemKind::UpstreamTimeout),
        };
        let mut response = problem_response(&problem);
        response.extensions_mut().insert(verdict);
        response
    }
}

fn unknown_detail(keyed: bool, reruns: bool) -> &'static str {
    match (keyed, reruns) {
        (true, false) => {
            "it may or may not have acted; a retry with the same key does not run, and gets 409 \
             outcome-unknown until an operator settles or releases the key"
        }
        (true, true) => {
            "it may or may not have acted; a retry with the same key runs again, and the service \
             sees that it is another attempt"
        }
        (false, _) => "it may or may not have acted; without a key a retry is not recognised",
    }
}

pub(crate) fn problem_response(problem: &Problem) -> Response<UpstreamBody> {
    problem.response().map(|body| UpstreamBody::full(body.bytes().clone()))
}
