//! Problem documents (RFC 9457): every response of hapax that is not a success.

mod convert;
mod kind;

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::{Map, Value};

use crate::FullBody;
pub use convert::describe_store_error;
pub use kind::{ProblemEdge, ProblemKind};

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

    /// The response that carries the document.
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
        response
    }
}
