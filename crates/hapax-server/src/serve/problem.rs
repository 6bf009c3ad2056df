//! Problem documents (RFC 9457): every answer that is no success.

use std::borrow::Cow;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use hapax::command::CommandError;
use hapax::inbox::InboxError;
use hapax::lock::LockError;
use hapax::record::RecordError;
use hapax::{InvalidKey, StoreError, millis};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use serde::Serialize;
use utoipa::ToSchema;

use crate::health;

const BASE: &str = "https://hapax.dev/problems/";

/// A kind of problem: what is always the same about it.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) code: &'static str,
    pub(crate) status: u16,
    title: &'static str,
    retryable: bool,
}

impl Kind {
    /// One that is not of the API.
    pub(crate) const fn new(
        code: &'static str,
        status: u16,
        title: &'static str,
        retryable: bool,
    ) -> Self {
        Self { code, status, title, retryable }
    }
}

macro_rules! kinds {
    ($($name:ident = $status:literal $code:literal, $title:literal, $retryable:literal;)+) => {
        $(pub(crate) const $name: Kind =
            Kind { code: $code, status: $status, title: $title, retryable: $retryable };)+
        /// Every kind, for the documentation.
        pub(crate) const KINDS: &[&Kind] = &[$(&$name),+];
    };
}

kinds! {
    INVALID = 400 "invalid-request", "The request is not valid", false;
    UNAUTHORIZED = 401 "unauthorized", "A valid token is needed", false;
    FORBIDDEN = 403 "forbidden", "This is not allowed", false;
    NOT_FOUND = 404 "not-found", "There is no such path", false;
    RECORD_MISSING = 404 "record-missing", "There is no such record", false;
    COMMAND_MISSING = 404 "command-missing", "There is no such command", false;
    JOB_MISSING = 404 "job-missing", "There is no such job", false;
    DEAD_LETTER_MISSING = 404 "dead-letter-missing", "There is no such dead letter", false;
    METHOD = 405 "method-not-allowed", "This path does not take this method", false;
    TOO_SLOW = 408 "request-timeout", "The request took too long to arrive", true;
    LOCK_HELD = 409 "lock-held", "Somebody else holds the lock", true;
    LOCK_LOST = 409 "lock-lost", "The lock is not the token's (any more)", false;
    IN_PROGRESS = 409 "in-progress", "Somebody is at it now", true;
    OUTCOME_UNKNOWN = 409 "outcome-unknown", "Whether the command ran is not known", false;
    ALREADY_COMPLETED = 409 "already-completed", "The command has its answer already", false;
    CLAIM_LOST = 409 "claim-lost", "The claim is not the token's (any more)", false;
    EVENT_CONFLICT = 409 "event-conflict", "The log has another event of this identity", false;
    JOB_CLOSED = 409 "job-closed", "The job has had its last event", false;
    CONTENDED = 409 "record-contended", "Others kept changing the record", true;
    VERSION_MISMATCH = 412 "version-mismatch", "The record is not the expected version", false;
    TOO_LARGE = 413 "payload-too-large", "The request body is too large", false;
    MEDIA_TYPE = 415 "unsupported-media-type", "The body is not of a type taken here", false;
    KEY_REUSED = 422 "key-reused", "The key belongs to another request", false;
    TOO_MANY = 429 "too-many-requests", "Too many requests at once", true;
    HEADERS_TOO_LARGE = 431 "headers-too-large", "The request has too many headers", false;
    INTERNAL = 500 "internal", "Something went wrong in the server", false;
    RECORD_CORRUPT = 500 "record-corrupt", "The stored value cannot be read", false;
    STORE_UNAVAILABLE = 503 "store-unavailable", "The store gave no answer", true;
    TOO_MANY_STREAMS = 503 "too-many-streams", "Too many event streams are open", true;
    SHUTTING_DOWN = 503 "shutting-down", "The server is shutting down", true;
}

/// What went wrong with one request. Never says a key, a value or a token.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) kind: &'static Kind,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub(crate) fn new(kind: &'static Kind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, detail: detail.into(), retry_after: None, header: None }
    }

    /// 400: something about the request itself.
    pub(crate) fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(&INVALID, detail)
    }

    /// Says where, in front of what.
    pub(crate) fn in_front(mut self, place: &str) -> Self {
        self.detail = format!("{place}{}", self.detail).into();
        self
    }

    /// When asking again makes sense.
    pub(crate) fn retry_after(mut self, time: Duration) -> Self {
        self.retry_after = Some(time);
        self
    }

    /// With one more header.
    pub(crate) fn header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, HeaderValue::from_static(value)));
        self
    }

    /// The document.
    pub(crate) fn document(&self) -> ProblemDocument {
        ProblemDocument {
            problem_type: format!("{BASE}{}", self.kind.code),
            title: self.kind.title.into(),
            status: self.kind.status,
            detail: self.detail.to_string(),
            retryable: self.kind.retryable,
            retry_after_ms: self.retry_after.map(millis),
        }
    }
}

/// A problem document (RFC 9457).
#[derive(Serialize, ToSchema)]
pub(crate) struct ProblemDocument {
    /// A URI that ends in the problem's stable code.
    #[serde(rename = "type")]
    #[schema(example = "https://hapax.dev/problems/lock-held")]
    problem_type: String,
    /// What kind of problem it is.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What is wrong with this request. Never contains a key, a value or a token.
    detail: String,
    /// Whether the same request may succeed later, and may safely be sent again.
    retryable: bool,
    /// When to ask again, where known; `Retry-After` says the same in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = serde_json::to_vec(&self.document()).expect("plain fields become JSON");
        let mut response = document.into_response();
        *response.status_mut() =
            StatusCode::from_u16(self.kind.status).expect("kinds have real statuses");
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(time) = self.retry_after {
            let seconds = millis(time).div_ceil(1000).max(1);
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some((name, value)) = self.header {
            headers.insert(name, value);
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::warn!(reason = error.label(), "a store call failed: {error}");
        let reason = health::reason(&error);
        match error {
            StoreError::Corrupt { .. } => Self::new(&INTERNAL, reason),
            _ => Self::new(&STORE_UNAVAILABLE, reason).retry_after(Duration::from_secs(1)),
        }
    }
}

impl From<InvalidKey> for Problem {
    fn from(error: InvalidKey) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<LockError> for Problem {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held { retry_after } => {
                Self::new(&LOCK_HELD, "the lock is held; ask again when it may be free")
                    .retry_after(retry_after)
            }
            LockError::Lost => {
                Self::new(&LOCK_LOST, "it ran out, was released, or the token is not its owner's")
            }
            LockError::Invalid(error) => error.into(),
            LockError::Store(error) => error.into(),
            _ => Self::new(&INTERNAL, "the lock failed"),
        }
    }
}

impl From<RecordError> for Problem {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Missing => Self::new(&RECORD_MISSING, "nothing is stored under this key"),
            RecordError::Conflict => Self::new(
                &VERSION_MISMATCH,
                "what is stored is not what the precondition expects; nothing was changed",
            ),
            RecordError::Contended => {
                Self::new(&CONTENDED, "nothing was changed").retry_after(Duration::from_secs(1))
            }
            RecordError::Corrupt(_) => {
                Self::new(&RECORD_CORRUPT, "what is stored under this key is not JSON")
            }
            RecordError::TooLarge { .. } => Self::new(&TOO_LARGE, error.to_string()),
            RecordError::Invalid(error) => error.into(),
            RecordError::Store(error) => error.into(),
            _ => Self::new(&INTERNAL, "the record failed"),
        }
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Lost => Self::new(
                &CLAIM_LOST,
                "it was taken over, completed with another answer, failed or forgotten, or the \
                 token is not its owner's",
            ),
            CommandError::Invalid(error) => error.into(),
            CommandError::Unstorable => Self::invalid(format!("`headers`: {error}")),
            CommandError::Malformed(_) => Self::new(&INTERNAL, "the stored answer cannot be read"),
            CommandError::Store(error) => error.into(),
            _ => Self::new(&INTERNAL, "the command failed"),
        }
    }
}

impl From<InboxError> for Problem {
    fn from(error: InboxError) -> Self {
        match error {
            InboxError::Lost => Self::new(
                &CLAIM_LOST,
                "it was taken over, settled, given back or forgotten, or the token is not its \
                 owner's",
            ),
            InboxError::Invalid(error) => error.into(),
            InboxError::Store(error) => error.into(),
            _ => Self::new(&INTERNAL, "the inbox failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_about_the_api_has_every_problem_as_it_is() {
        let page = include_str!("../../../../docs/http.md");
        let mut table = String::from("| status | code | what it means | `retryable` |\n");
        table.push_str("|---|---|---|---|\n");
        for Kind { code, status, title, retryable } in KINDS {
            let again = if *retryable { "yes" } else { "no" };
            table.push_str(&format!("| {status} | `{code}` | {title} | {again} |\n"));
        }
        assert!(page.contains(&table), "docs/http.md should have this table:\n\n{table}");
    }
}
