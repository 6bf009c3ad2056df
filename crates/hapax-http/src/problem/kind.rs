use http::StatusCode;

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

            /// The stable code at the end of the document's `type`.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$kind => $code,)+ }
            }

            /// The document's `type`.
            pub fn type_uri(self) -> String {
                format!("https://hapax.dev/problems/{}", self.code())
            }

            /// The status of the response.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$kind => StatusCode::$status,)+ }
            }

            /// The problem in one line.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$kind => $title,)+ }
            }

            /// Whether the same request may succeed later and can safely be sent again.
            pub const fn is_retryable(self) -> bool {
                match self { $(Self::$kind => $retryable,)+ }
            }

            /// Where it can be answered.
            pub const fn edges(self) -> &'static [ProblemEdge] {
                match self { $(Self::$kind => &[$(ProblemEdge::$edge),+],)+ }
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
    NotFound = NOT_FOUND "not-found" false [Api, Line] "The path does not exist";
    NoRoute = NOT_FOUND "no-route" false [Proxy] "No route matches the path";
    RecordMissing = NOT_FOUND "record-missing" false [Api] "The record does not exist";
    CommandMissing = NOT_FOUND "command-missing" false [Api] "The command does not exist";
    JobMissing = NOT_FOUND "job-missing" false [Api] "The job does not exist";
    DeadLetterMissing = NOT_FOUND "dead-letter-missing" false [Api] "The dead letter does not exist";
    MethodNotAllowed = METHOD_NOT_ALLOWED "method-not-allowed" false [Api, Proxy, Line] "The method is not allowed here";
    RequestTimeout = REQUEST_TIMEOUT "request-timeout" true [Api, Line] "The request took too long to arrive";
    LockHeld = CONFLICT "lock-held" true [Api] "The lock is held by another owner";
    LockLost = CONFLICT "lock-lost" false [Api] "The lock does not belong to this token";
    InProgress = CONFLICT "in-progress" true [Api, Layer] "Another attempt is still running";
    OutcomeUnknown = CONFLICT "outcome-unknown" false [Api, Layer] "The outcome of an attempt is unknown";
    ResponseNotKept = CONFLICT "response-not-kept" false [Layer] "The request ran, but its response was not kept";
    AlreadyCompleted = CONFLICT "already-completed" false [Api] "The command is already completed";
    ClaimLost = CONFLICT "claim-lost" false [Api] "The claim does not belong to this token";
    EventConflict = CONFLICT "event-conflict" false [Api] "The log has another event with this identity";
    JobClosed = CONFLICT "job-closed" false [Api] "The job is closed";
    RecordContended = CONFLICT "record-contended" true [Api] "Other writers kept changing the record";
    VersionMismatch = PRECONDITION_FAILED "version-mismatch" false [Api] "The record is not at the expected version";
    PayloadTooLarge = PAYLOAD_TOO_LARGE "payload-too-large" false [Api, Layer, Line] "The request body is too large";
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" false [Api] "The content type is not accepted here";
    KeyReused = UNPROCESSABLE_ENTITY "key-reused" false [Api, Layer] "The key belongs to another request";
    TooManyRequests = TOO_MANY_REQUESTS "too-many-requests" true [Api, Line] "Too many requests at once";
    HeadersTooLarge = REQUEST_HEADER_FIELDS_TOO_LARGE "headers-too-large" false [Api] "The request headers are too large";
    Internal = INTERNAL_SERVER_ERROR "internal" false [Api, Layer] "The server failed";
    RecordCorrupt = INTERNAL_SERVER_ERROR "record-corrupt" false [Api] "The stored value cannot be read";
    UpstreamUnreachable = BAD_GATEWAY "upstream-unreachable" true [Proxy] "The upstream cannot be reached";
    UpstreamFailed = BAD_GATEWAY "upstream-failed" false [Proxy] "The upstream ended the connection before its response";
    StoreUnavailable = SERVICE_UNAVAILABLE "store-unavailable" true [Api, Layer, Line] "The store did not answer";
    TooManyStreams = SERVICE_UNAVAILABLE "too-many-streams" true [Api] "Too many event streams are open";
    ShuttingDown = SERVICE_UNAVAILABLE "shutting-down" true [Api, Layer] "The server is shutting down";
    UpstreamTimeout = GATEWAY_TIMEOUT "upstream-timeout" false [Proxy] "The upstream did not respond in time";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_table_in_the_docs_matches_the_kinds() {
        let page = include_str!("../../../../docs/http.md");
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
