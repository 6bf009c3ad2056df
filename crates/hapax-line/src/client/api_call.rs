//! One call of LINE's API: its retries, and the meaning of each response.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::worker::Backoff;
use hapax_http_client::{HttpClient, HttpError};
use http_body_util::Full;
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Request, StatusCode};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{SendError, SendStatus};

const RETRY_KEY: &str = "x-line-retry-key";
const MAX_ATTEMPTS: u32 = 3;
/// The pause before the second attempt; doubled before the third.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause before another attempt. A longer `Retry-After` ends the call: the user is
/// waiting, and the reply token expires.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// One request to LINE, and whether it may be repeated.
pub(super) struct ApiCall<'a> {
    pub(super) http: &'a HttpClient,
    pub(super) timeout: Duration,
    pub(super) what: &'static str,
    pub(super) request: Request<Full<Bytes>>,
    /// Whether LINE recognises a repetition, so that the call may be repeated after an unknown
    /// outcome.
    pub(super) is_repeatable: bool,
}

/// The result of one attempt; after a failure with the pause that LINE asks for.
type AttemptResult = Result<SendStatus, (SendError, Option<Duration>)>;

impl ApiCall<'_> {
    /// Makes the call repeatable: LINE accepts each retry key once.
    pub(super) fn retry_key(mut self, key: Uuid) -> Self {
        let key = HeaderValue::from_str(&key.to_string()).expect("a UUID is a header value");
        self.request.headers_mut().insert(RETRY_KEY, key);
        self.is_repeatable = true;
        self
    }

    pub(super) async fn send_once(&self) -> Result<SendStatus, SendError> {
        self.attempt().await.map_err(|(error, _)| error)
    }

    pub(super) async fn send(&self) -> Result<SendStatus, SendError> {
        // No further attempt begins after `until`: one timeout per attempt of a repeatable call, a
        // single timeout for any other call.
        let timeouts = if self.is_repeatable { MAX_ATTEMPTS } else { 1 };
        let until = Instant::now() + self.timeout * timeouts;
        let mut outcome = SendError::NotNow;
        for nth in 1.. {
            let (error, asked_pause) = match self.attempt().await {
                Ok(status) => return Ok(status),
                Err(failed) => failed,
            };
            let may_repeat = match error {
                SendError::NotNow => true,
                SendError::OutcomeUnknown => self.is_repeatable,
                _ => false,
            };
            // LINE may have accepted an earlier attempt, so an unknown outcome stays unknown.
            if outcome != SendError::OutcomeUnknown {
                outcome = error;
            }
            let backoff = Backoff::new(PAUSE, Duration::MAX).after(nth);
            let pause = asked_pause.unwrap_or_default().max(backoff);
            let is_late = pause > MAX_PAUSE || Instant::now() + pause >= until;
            if !may_repeat || nth == MAX_ATTEMPTS || is_late {
                break;
            }
            sleep(pause).await;
        }
        Err(outcome)
    }

    async fn attempt(&self) -> AttemptResult {
        match self.http.call(self.request.clone(), self.timeout).await {
            Ok(reply) => self.read(reply.status, retry_after(&reply.headers)),
            // The status decides; the body is not needed.
            Err(HttpError::Unreadable(status)) => self.read(status, None),
            Err(error) => {
                tracing::warn!(what = self.what, %error, "LINE cannot be reached");
                match error {
                    HttpError::NotSent(_) => Err((SendError::NotNow, None)),
                    _ => Err((SendError::OutcomeUnknown, None)),
                }
            }
        }
    }

    fn read(&self, status: StatusCode, retry_after: Option<Duration>) -> AttemptResult {
        let (what, status) = (self.what, status.as_u16());
        let error = match status {
            200..=299 => return Ok(SendStatus::Accepted),
            409 if self.is_repeatable => return Ok(SendStatus::AlreadyAccepted),
            429 => SendError::NotNow,
            500.. => SendError::OutcomeUnknown,
            _ => SendError::Refused(status),
        };
        if matches!(status, 401 | 403) {
            tracing::error!(
                what,
                status,
                "LINE refuses the access token: check the channel access token and its rights"
            );
        } else {
            tracing::warn!(what, status, "LINE did not accept the call");
        }
        Err((error, retry_after.filter(|_| status == 429)))
    }
}

/// `Retry-After` in seconds, the form that LINE uses.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
