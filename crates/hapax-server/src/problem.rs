//! Problem documents in the OpenAPI description.

use hapax::millis;
use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use hapax_http::problem::{Problem, ProblemKind};

/// A problem document (RFC 9457).
#[derive(Serialize, ToSchema)]
pub(crate) struct ProblemDocument {
    /// A URI that ends in the problem's stable code.
    #[serde(rename = "type")]
    #[schema(example = "https://hapax.dev/problems/lock-held")]
    problem_type: String,
    /// The kind of problem.
    title: String,
    /// The HTTP status.
    status: u16,
    /// The fault of this request. Never contains a key, a value or a token.
    detail: String,
    /// Whether the same request may succeed later, and may safely be sent again.
    retryable: bool,
    /// When to ask again, where known; `Retry-After` says the same in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
}

impl From<Problem> for ProblemDocument {
    fn from(problem: Problem) -> Self {
        let kind = problem.kind();
        Self {
            problem_type: kind.type_uri(),
            title: kind.title().into(),
            status: kind.status().as_u16(),
            detail: problem.detail().into(),
            retryable: problem.is_retryable(),
            retry_after_ms: problem.retry_delay().map(millis),
        }
    }
}
