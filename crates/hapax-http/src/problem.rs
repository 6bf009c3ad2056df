use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Map, Value};

use crate::Whole;

/// An RFC 9457 problem document: what went wrong, and whether a retry is safe.
#[derive(Clone, Debug)]
pub struct Problem(Box<Document>);

#[derive(Clone, Debug)]
struct Document {
    status: StatusCode,
    code: &'static str,
    title: &'static str,
    detail: String,
    retryable: bool,
    retry_after: Option<Duration>,
    more: Map<String, Value>,
}

impl Problem {
    /// A problem that a retry does not solve.
    pub fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        let (detail, more) = (detail.into(), Map::new());
        let (retryable, retry_after) = (false, None);
        Self(Box::new(Document { status, code, title, detail, retryable, retry_after, more }))
    }

    /// A retry is safe.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.0.retryable = true;
        self
    }

    /// A retry is safe, and may succeed after this long.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self.retryable()
    }

    /// Says one thing more.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.more.insert(name.to_owned(), value.into());
        self
    }

    /// The response that carries it.
    pub fn response(&self) -> Response<Whole> {
        let this = &self.0;
        let mut document = Map::new();
        document.insert("type".into(), format!("https://hapax.dev/problems/{}", this.code).into());
        document.insert("title".into(), this.title.into());
        document.insert("status".into(), this.status.as_u16().into());
        document.insert("detail".into(), this.detail.as_str().into());
        document.insert("retryable".into(), this.retryable.into());
        if let Some(after) = this.retry_after {
            document.insert("retry_after_ms".into(), hapax_core::millis(after).into());
        }
        document.extend(this.more.clone());
        let document = Bytes::from(Value::Object(document).to_string());
        let mut response = Response::new(Whole::from(document));
        *response.status_mut() = this.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = this.retry_after {
            let seconds = hapax_core::millis(after).div_ceil(1000).max(1);
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}
