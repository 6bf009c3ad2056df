//! How often something is sent, and what each answer means.

use std::time::Duration;

use bytes::Bytes;
use hapax_http_client::{HttpClient, HttpError};
use http_body_util::Full;
use hyper::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Request, StatusCode};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{SendError, Sent};

const RETRY_KEY: &str = "x-line-retry-key";
const TRIES: u32 = 3;
/// Before the second try; twice as long before the third.
const PAUSE: Duration = Duration::from_millis(250);
/// The longest pause that LINE may ask for: a user waits, and the token of a reply grows old.
const PATIENCE: Duration = Duration::from_secs(2);

/// One request to LINE, and how it may be repeated.
pub(super) struct Letter<'a> {
    pub(super) http: &'a HttpClient,
    pub(super) limit: Duration,
    pub(super) what: &'static str,
    pub(super) request: Request<Full<Bytes>>,
    /// LINE knows it when it comes again.
    pub(super) repeatable: bool,
}

/// What one try says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Taken(Sent),
    Refused(u16),
    /// LINE took nothing, and may wish for a pause.
    Nothing(Option<Duration>),
    /// LINE may have taken it.
    Unknown,
}

impl Letter<'_> {
    /// Makes it one that LINE takes once, however often it comes.
    pub(super) fn retry_key(mut self, key: Uuid) -> Self {
        let key = HeaderValue::from_str(&key.to_string()).expect("a UUID is one");
        self.request.headers_mut().insert(RETRY_KEY, key);
        self.repeatable = true;
        self
    }

    pub(super) async fn deliver_once(&self) -> Result<Sent, SendError> {
        match self.send().await {
            Said::Taken(sent) => Ok(sent),
            Said::Refused(status) => Err(SendError::Refused(status)),
            Said::Nothing(_) => Err(SendError::NotNow),
            Said::Unknown => Err(SendError::Uncertain),
        }
    }

    pub(super) async fn deliver(&self) -> Result<Sent, SendError> {
        // A repeatable one may run into its limit each time; the other has one limit for all tries.
        let until = Instant::now() + self.limit * if self.repeatable { TRIES } else { 1 };
        let mut failed = SendError::NotNow;
        for nth in 1.. {
            let wish = match self.send().await {
                Said::Taken(sent) => return Ok(sent),
                // An earlier try may have been taken before LINE changed its mind.
                Said::Refused(_) if failed == SendError::Uncertain => break,
                Said::Refused(status) => return Err(SendError::Refused(status)),
                Said::Nothing(wish) => wish,
                Said::Unknown => {
                    failed = SendError::Uncertain;
                    if !self.repeatable {
                        break;
                    }
                    None
                }
            };
            let pause = wish.unwrap_or_default().max(backoff(nth));
            if nth == TRIES || pause > PATIENCE || Instant::now() + pause >= until {
                break;
            }
            sleep(pause).await;
        }
        Err(failed)
    }

    async fn send(&self) -> Said {
        match self.http.call(self.request.clone(), self.limit).await {
            Ok(reply) => self.read(reply.status, pause(&reply.headers)),
            // The status has said it all.
            Err(HttpError::Unreadable(status)) => self.read(status, None),
            Err(error) => {
                tracing::warn!(what = self.what, %error, "LINE cannot be reached");
                match error {
                    HttpError::NotSent(_) => Said::Nothing(None),
                    _ => Said::Unknown,
                }
            }
        }
    }

    fn read(&self, status: StatusCode, pause: Option<Duration>) -> Said {
        let said = match status.as_u16() {
            200..=299 => return Said::Taken(Sent::Accepted),
            409 if self.repeatable => return Said::Taken(Sent::Before),
            429 => Said::Nothing(pause),
            500.. => Said::Unknown,
            status => Said::Refused(status),
        };
        self.complain(status.as_u16());
        said
    }

    fn complain(&self, status: u16) {
        if matches!(status, 401 | 403) {
            tracing::error!(
                what = self.what,
                status,
                "LINE refuses the access token: check the channel access token and its rights"
            );
        } else {
            tracing::warn!(what = self.what, status, "LINE did not take what was sent");
        }
    }
}

/// `Retry-After` in seconds, the form that LINE would use.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Gateways that failed together do not come back together.
fn backoff(nth: u32) -> Duration {
    let whole = PAUSE.saturating_mul(1 << (nth - 1).min(8));
    whole.mul_f64(0.5 + fastrand::f64() / 2.0)
}
