//! What a client is told where the upstream gave no answer, and whether a retry may run.

use std::time::Duration;

use hapax::metric_names;
use hapax_http::{Problem, ProblemKind, Verdict};
use hyper::Response;
use metrics::counter;

use super::answer::Arriving;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There was no connection: not a byte of the request was sent.
    Unreachable,
    /// The connection ended before the answer did.
    Cut,
    /// It was silent for too long.
    Silent,
}

impl Failure {
    /// Why the client gave up. Only what failed before there was a connection is known not to have
    /// reached the upstream.
    pub(crate) fn of(error: &hapax_http_client::RequestError) -> Self {
        if error.is_connect() { Self::Unreachable } else { Self::Cut }
    }

    const fn reason(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Cut => "cut",
            Self::Silent => "timeout",
        }
    }

    /// The answer. `keyed` is whether a retry would be recognised.
    pub(crate) fn response(self, route: &str, keyed: bool, reruns: bool) -> Response<Arriving> {
        let reason = self.reason();
        counter!(metric_names::UPSTREAM_FAILURES, "route" => route.to_owned(), "reason" => reason)
            .increment(1);
        tracing::warn!(route, reason, "the upstream gave no answer");
        let (problem, verdict) = match self {
            Self::Unreachable => (
                Problem::new(
                    ProblemKind::UpstreamUnreachable,
                    "nothing was sent to it, so nothing ran; the same request may be sent again",
                )
                .retry_after(Duration::from_secs(1)),
                Verdict::GiveBack,
            ),
            Self::Cut => {
                (Problem::new(ProblemKind::UpstreamFailed, after(keyed, reruns)), Verdict::Unknown)
            }
            Self::Silent => {
                (Problem::new(ProblemKind::UpstreamTimeout, after(keyed, reruns)), Verdict::Unknown)
            }
        };
        // A rerun is what the operator chose for exactly this case.
        let problem = if keyed && reruns && verdict == Verdict::Unknown {
            problem.retryable()
        } else {
            problem
        };
        let mut response = whole(&problem);
        response.extensions_mut().insert(verdict);
        response
    }
}

fn after(keyed: bool, reruns: bool) -> &'static str {
    match (keyed, reruns) {
        (true, false) => {
            "it may or may not have acted; a retry with the same key does not run, and gets 409 \
             outcome-unknown until somebody settles or releases the key"
        }
        (true, true) => {
            "it may or may not have acted; a retry with the same key runs again, and the service is \
             told that it is another attempt"
        }
        (false, _) => "it may or may not have acted; without a key nobody can tell",
    }
}

/// A problem as an answer.
pub(crate) fn whole(problem: &Problem) -> Response<Arriving> {
    problem.response().map(|body| Arriving::whole(body.bytes().clone()))
}
