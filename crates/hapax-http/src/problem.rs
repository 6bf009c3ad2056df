//! Problem documents (RFC 9457): every response of hapax that is not a success.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::bus::{BusError, InvalidEvent};
use hapax_core::command::CommandError;
use hapax_core::document::DocumentError;
use hapax_core::inbox::InboxError;
use hapax_core::lock::LockError;
use hapax_core::{InvalidKey, StoreError};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Map, Value};

use crate::FullBody;

/// A problem with one request, and whether a retry is safe. The detail must never contain a key, a
/// stored value or a token.
///
/// ```
/// use hapax_http::problem::{Problem, ProblemKind};
/// let problem = Problem::new(ProblemKind::StoreUnavailable, "nothing was run; try again");
/// let response = problem.response();
/// assert_eq!(response.status(), 503);
/// assert_eq!(response.headers()["content-type"], "application/problem+json");
/// ```
#[derive(Clone, Debug)]
pub struct Problem(Box<Fields>);

#[derive(Clone, Debug)]
struct Fields {
    kind: ProblemKind,
    detail: Cow<'static, str>,
    retryable: bool,
    retry_after: Option<Duration>,
    members: Map<String, Value>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// A problem of this kind; `detail` says what is wrong with this request.
    pub fn new(kind: ProblemKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Fields {
            kind,
            detail: detail.into(),
            retryable: kind.is_retryable(),
            retry_after: None,
            members: Map::new(),
            header: None,
        }))
    }

    /// 400 [`ProblemKind::InvalidRequest`].
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ProblemKind::InvalidRequest, detail)
    }

    /// Says that a retry is safe although its kind does not.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.0.retryable = true;
        self
    }

    /// Says that a retry is not safe although its kind says so.
    #[must_use]
    pub fn not_retryable(mut self) -> Self {
        self.0.retryable = false;
        self
    }

    /// Says after how long a retry may succeed, as `retry_after_ms` and in `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Adds a member to the document.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a header to the response.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.0.header = Some((name, HeaderValue::from_static(value)));
        self
    }

    /// Puts a text in front of the detail.
    #[must_use]
    pub fn prefix_detail(mut self, prefix: &str) -> Self {
        self.0.detail = format!("{prefix}{}", self.0.detail).into();
        self
    }

    /// The kind of the problem.
    pub fn kind(&self) -> ProblemKind {
        self.0.kind
    }

    /// The problem of this request, in one sentence.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Whether the same request may succeed later and can safely be sent again.
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// After how long a retry may succeed, where that is known.
    pub fn retry_delay(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The document's JSON.
    pub fn document(&self) -> String {
        let Fields { kind, detail, retryable, retry_after, members, .. } = &*self.0;
        let mut document = Map::new();
        document.insert("type".into(), kind.type_uri().into());
        document.insert("title".into(), kind.title().into());
        document.insert("status".into(), kind.status().as_u16().into());
        document.insert("detail".into(), detail.as_ref().into());
        document.insert("retryable".into(), (*retryable).into());
        if let Some(after) = retry_after {
            document.insert("retry_after_ms".into(), hapax_core::millis(*after).into());
        }
        document.extend(members.clone());
        Value::Object(document).to_string()
    }

    /// The response that carries the document. Its extensions hold the [`ProblemKind`], by which a
    /// server tells hapax's own responses from those of the service.
    pub fn response(&self) -> Response<FullBody> {
        let mut response = Response::new(FullBody::from(Bytes::from(self.document())));
        *response.status_mut() = self.0.kind.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = self.0.retry_after {
            let seconds = hapax_core::millis(after).div_ceil(1000).max(1);
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some((name, value)) = &self.0.header {
            headers.insert(name, value.clone());
        }
        response.extensions_mut().insert(self.0.kind);
        response
    }
}

/// Where a problem can be answered: the HTTP API of `hapax serve`, the `Idempotency-Key` layer, the
/// proxy (which also answers everything of the layer), or the LINE webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemEdge {
    /// `hapax serve`.
    Api,
    /// [`IdempotencyLayer`](crate::IdempotencyLayer), in a service of yours or in `hapax proxy`.
    Layer,
    /// `hapax proxy` itself.
    Proxy,
    /// `hapax line`.
    Line,
}

/// The properties of a [`ProblemKind`].
struct KindProperties {
    status: StatusCode,
    code: &'static str,
    retryable: bool,
    edges: &'static [ProblemEdge],
    title: &'static str,
}

macro_rules! problem_kinds {
    ($($kind:ident = $status:ident $code:literal $retryable:literal [$($edge:ident),+] $title:literal;)+) => {
        /// A kind of problem. Code, status, title and the default of `retryable` are the same
        /// wherever it is answered.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ProblemKind {
            $(#[doc = concat!($title, ".")] $kind,)+
        }

        impl ProblemKind {
            /// Every kind, by status.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            const fn properties(self) -> &'static KindProperties {
                match self {
                    $(Self::$kind => &KindProperties {
                        status: StatusCode::$status,
                        code: $code,
                        retryable: $retryable,
                        edges: &[$(ProblemEdge::$edge),+],
                        title: $title,
                    },)+
                }
            }
        }
    };
}

problem_kinds! {
    InvalidRequest = BAD_REQUEST "invalid-request" false [Api, Layer, Proxy] "The request is not valid";
    KeyMissing = BAD_REQUEST "key-missing" false [Layer] "The request needs an Idempotency-Key";
    InvalidKey = BAD_REQUEST "invalid-key" false [Layer] "The Idempotency-Key is not valid";
    ScopeMissing = BAD_REQUEST "scope-missing" false [Layer] "The caller of the request cannot be identified";
    LineWebhook = BAD_REQUEST "line-webhook" false [Line] "The body is not a LINE webhook";
    Unauthorized = UNAUTHORIZED "unauthorized" false [Api] "A valid token is required";
    LineSignature = UNAUTHORIZED "line-signature" false [Line] "The LINE signature is missing or wrong";
    Forbidden = FORBIDDEN "forbidden" false [Api, Line] "The request is not allowed";
    ForwardedRequest = FORBIDDEN "forwarded-request" false [Api, Line] "The request came through a proxy";
    NotFound = NOT_FOUND "not-found" false [Api, Line] "The path does not exist";
    NoRoute = NOT_FOUND "no-route" false [Proxy] "No route matches the path";
    RecordMissing = NOT_FOUND "record-missing" false [Api] "The record does not exist";
    CommandMissing = NOT_FOUND "command-missing" false [Api] "The command does not exist";
    JobMissing = NOT_FOUND "job-missing" false [Api] "The job does not exist";
    LockFree = NOT_FOUND "lock-free" false [Api] "The lock is not held";
    TaskMissing = NOT_FOUND "task-missing" false [Api] "The task does not exist";
    DeadLetterMissing = NOT_FOUND "dead-letter-missing" false [Api] "The dead letter does not exist";
    MethodNotAllowed = METHOD_NOT_ALLOWED "method-not-allowed" false [Api, Proxy, Line] "The method is not allowed here";
    RequestTimeout = REQUEST_TIMEOUT "request-timeout" true [Api, Layer, Proxy, Line] "The request took too long to arrive";
    LockHeld = CONFLICT "lock-held" true [Api] "The lock is held by another owner";
    LockLost = CONFLICT "lock-lost" false [Api] "The lock does not belong to this token";
    InProgress = CONFLICT "in-progress" true [Api, Layer] "Another attempt is still running";
    OutcomeUnknown = CONFLICT "outcome-unknown" false [Api, Layer] "The outcome of an attempt is unknown";
    ResponseNotKept = CONFLICT "response-not-kept" false [Layer] "The request ran, but its response was not kept";
    AlreadyCompleted = CONFLICT "already-completed" false [Api] "The command is already completed";
    ScopeAmbiguous = CONFLICT "scope-ambiguous" false [Api] "Several callers have such a command";
    ClaimLost = CONFLICT "claim-lost" false [Api] "The claim does not belong to this token";
    EventConflict = CONFLICT "event-conflict" false [Api] "The log has another event with this identity";
    JobClosed = CONFLICT "job-closed" false [Api] "The job is closed";
    RecordContended = CONFLICT "record-contended" true [Api] "Other writers kept changing the record";
    VersionMismatch = PRECONDITION_FAILED "version-mismatch" false [Api] "The record is not at the expected version";
    PayloadTooLarge = PAYLOAD_TOO_LARGE "payload-too-large" false [Api, Layer, Line] "The request body is too large";
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" false [Api] "The content type is not accepted here";
    KeyReused = UNPROCESSABLE_ENTITY "key-reused" false [Api, Layer] "The key belongs to another request";
    TooManyRequests = TOO_MANY_REQUESTS "too-many-requests" true [Api, Layer, Line] "Too many requests at once";
    HeadersTooLarge = REQUEST_HEADER_FIELDS_TOO_LARGE "headers-too-large" false [Api, Proxy] "The request headers are too large";
    Internal = INTERNAL_SERVER_ERROR "internal" false [Api, Layer] "The server failed";
    RecordCorrupt = INTERNAL_SERVER_ERROR "record-corrupt" false [Api] "The stored value cannot be read";
    UpstreamUnreachable = BAD_GATEWAY "upstream-unreachable" true [Proxy] "The upstream cannot be reached";
    UpstreamFailed = BAD_GATEWAY "upstream-failed" false [Proxy] "The upstream ended the connection before its response";
    StoreUnavailable = SERVICE_UNAVAILABLE "store-unavailable" true [Api, Layer, Line] "The store did not answer";
    TooManyStreams = SERVICE_UNAVAILABLE "too-many-streams" true [Api] "Too many event streams are open";
    Overloaded = SERVICE_UNAVAILABLE "overloaded" true [Api, Layer, Line] "The server has no room for the request now";
    ShuttingDown = SERVICE_UNAVAILABLE "shutting-down" true [Api, Layer] "The server is shutting down";
    UpstreamTimeout = GATEWAY_TIMEOUT "upstream-timeout" false [Proxy] "The upstream did not respond in time";
}

impl ProblemKind {
    /// The stable code at the end of the document's `type`.
    pub const fn code(self) -> &'static str {
        self.properties().code
    }

    /// The document's `type`.
    pub fn type_uri(self) -> String {
        format!("https://hapax.dev/problems/{}", self.code())
    }

    /// The status of the response.
    pub const fn status(self) -> StatusCode {
        self.properties().status
    }

    /// The problem in one line.
    pub const fn title(self) -> &'static str {
        self.properties().title
    }

    /// Whether the same request may succeed later and can safely be sent again.
    pub const fn is_retryable(self) -> bool {
        self.properties().retryable
    }

    /// Where it can be answered.
    pub const fn edges(self) -> &'static [ProblemEdge] {
        self.properties().edges
    }
}

#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for Problem {
    fn into_response(self) -> axum_core::response::Response {
        self.response().map(axum_core::body::Body::new)
    }
}

/// A store's error in words that may reach a client: the driver's own text may hold addresses and
/// stored values, and belongs into the log.
pub fn describe_store_error(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable { .. } => "the store cannot be reached",
        StoreError::Timeout { .. } => "the store did not answer in time",
        StoreError::Full { .. } => "the store has no room left",
        StoreError::ReadOnly { .. } => "the store takes no writes now",
        StoreError::Replaced { .. } => "the store's files were removed or replaced while in use",
        StoreError::Locked { .. } => "the store is locked by another process",
        StoreError::Refused { .. } => "the store refused the server's user, or a right is missing",
        StoreError::Incompatible { .. } => "the store cannot be used by this version",
        StoreError::Corrupt { .. } => "a stored value cannot be read",
        _ => "the store failed",
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::warn!(reason = error.label(), "a store call failed: {error}");
        let detail = describe_store_error(&error);
        match error {
            StoreError::Corrupt { .. } => Self::new(ProblemKind::Internal, detail),
            _ => {
                Self::new(ProblemKind::StoreUnavailable, detail).retry_after(Duration::from_secs(1))
            }
        }
    }
}

impl From<InvalidKey> for Problem {
    fn from(error: InvalidKey) -> Self {
        Self::invalid(error.to_string())
    }
}

/// Converts a feature's error: these cases of its own, then those that every feature has.
macro_rules! problem_from {
    ($error:ident, $failed:literal, { $($case:pat => $problem:expr,)+ }) => {
        impl From<$error> for Problem {
            fn from(error: $error) -> Self {
                match error {
                    $($case => $problem,)+
                    $error::Store(error) => error.into(),
                    _ => Self::new(ProblemKind::Internal, $failed),
                }
            }
        }
    };
}

problem_from!(LockError, "the lock failed", {
    LockError::Held { retry_after } => {
        Self::new(ProblemKind::LockHeld, "the lock is held; ask again when it may be free")
            .retry_after(retry_after)
    },
    LockError::Lost => Self::new(
        ProblemKind::LockLost,
        "it ran out, was released, or the token is not its owner's",
    ),
    LockError::Invalid(key) => key.into(),
});

problem_from!(DocumentError, "the record failed", {
    DocumentError::Missing => {
        Self::new(ProblemKind::RecordMissing, "nothing is stored under this key")
    },
    DocumentError::Conflict => Self::new(
        ProblemKind::VersionMismatch,
        "what is stored is not what the precondition expects; nothing was changed",
    ),
    DocumentError::Contended => Self::new(ProblemKind::RecordContended, "nothing was changed")
        .retry_after(Duration::from_secs(1)),
    DocumentError::Corrupt(_) => {
        Self::new(ProblemKind::RecordCorrupt, "what is stored under this key is not JSON")
    },
    large @ DocumentError::TooLarge { .. } => {
        Self::new(ProblemKind::PayloadTooLarge, large.to_string())
    },
    DocumentError::Invalid(key) => key.into(),
});

problem_from!(CommandError, "the command failed", {
    CommandError::Lost => Self::new(
        ProblemKind::ClaimLost,
        "it was taken over, completed with another answer, failed or forgotten, or the token is \
         not its owner's",
    ),
    CommandError::Invalid(key) => key.into(),
    headers @ CommandError::Unstorable => Self::invalid(format!("`headers`: {headers}")),
    CommandError::Malformed(_) => {
        Self::new(ProblemKind::Internal, "the stored answer cannot be read")
    },
});

problem_from!(InboxError, "the inbox failed", {
    InboxError::Lost => Self::new(
        ProblemKind::ClaimLost,
        "it was taken over, settled, given back or forgotten, or the token is not its owner's",
    ),
    InboxError::Invalid(key) => key.into(),
});

problem_from!(BusError, "the bus failed", {
    BusError::Invalid(event @ InvalidEvent::TooLarge { .. }) => {
        Self::new(ProblemKind::PayloadTooLarge, event.to_string())
    },
    BusError::Invalid(event) => Self::invalid(event.to_string()),
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_table_in_the_docs_matches_the_kinds() {
        let page = include_str!("../../../docs/http.md");
        let mut table = String::from("| status | code | title | `retryable` | answered by |\n");
        table.push_str("|---|---|---|---|---|\n");
        for kind in ProblemKind::ALL {
            let (status, code, title) = (kind.status().as_u16(), kind.code(), kind.title());
            let retryable = if kind.is_retryable() { "yes" } else { "no" };
            let edges: Vec<_> = kind.edges().iter().map(|edge| format!("{edge:?}")).collect();
            let edges = edges.join(", ").replace("Api", "API").replace("Line", "LINE");
            let edges = edges.replace("Layer", "layer").replace("Proxy", "proxy");
            table.push_str(&format!("| {status} | `{code}` | {title} | {retryable} | {edges} |\n"));
        }
        assert!(page.contains(&table), "docs/http.md should have this table:\n\n{table}");
    }

    #[test]
    fn problem_codes_are_unique() {
        let codes: std::collections::HashSet<_> =
            ProblemKind::ALL.iter().map(|k| k.code()).collect();
        assert_eq!(codes.len(), ProblemKind::ALL.len());
    }
}
