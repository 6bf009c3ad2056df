//! A bot behind a URL.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::trace::{self, TRACEPARENT};
use hapax_http_client::{HttpClient, HttpError};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use url::Url;

use crate::{Event, Failed, Handler, SIGNATURE, Secrets, Turn};

const LIMIT: Duration = Duration::from_secs(30);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const ATTEMPT: HeaderName = HeaderName::from_static("hapax-attempt");
const FENCE: HeaderName = HeaderName::from_static("hapax-fence");

/// A [`Handler`] that posts each event to a URL, as a webhook with that event alone.
///
/// The event's bytes are those that LINE sent, and `X-Line-Signature` is that of the new body: a bot
/// that takes webhooks from LINE takes them from here. `Idempotency-Key` is the same however often an
/// event is tried, `Hapax-Attempt` says how often, and `Hapax-Fence` grows ([`Turn::fence`]).
///
/// | what the bot answers | what follows |
/// |---|---|
/// | 2xx | it is done |
/// | any other status, redirects too | it is tried again |
/// | cannot be reached | it is tried again |
/// | 502, 504, nothing in time, a cut connection | nobody knows: [`Settings::on_unknown`](crate::Settings::on_unknown) |
///
/// ```
/// use hapax_line::{Secrets, Upstream};
/// let secrets = Secrets::new("channel secret").unwrap();
/// assert!(Upstream::new("http://127.0.0.1:3000/callback", secrets.clone()).is_ok());
/// assert!(Upstream::new("127.0.0.1:3000", secrets).is_err());
/// ```
pub struct Upstream {
    uri: Uri,
    secrets: Secrets,
    http: HttpClient,
    limit: Duration,
}

/// What is no address of a bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a URL such as http://127.0.0.1:3000/callback is expected, without user and password: the bot \
     knows us by the signature"
)]
pub struct InvalidUpstream;

impl Upstream {
    /// A bot at this URL, which checks signatures with the first of these secrets.
    ///
    /// # Errors
    /// Where it is no `http://` or `https://` URL, or has a user or a password in it.
    pub fn new(url: &str, secrets: Secrets) -> Result<Self, InvalidUpstream> {
        let url = Url::parse(url).map_err(|_| InvalidUpstream)?;
        let names_nobody = url.username().is_empty() && url.password().is_none();
        if !matches!(url.scheme(), "http" | "https") || !names_nobody {
            return Err(InvalidUpstream);
        }
        let uri = url.as_str().parse().map_err(|_| InvalidUpstream)?;
        Ok(Self { uri, secrets, http: HttpClient::new(), limit: LIMIT })
    }

    /// How long the bot may take for one event; 30 s otherwise. Keep
    /// [`Settings::handle_limit`](crate::Settings::handle_limit) longer.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    fn request(&self, event: &Event, turn: &Turn) -> Result<Request<Full<Bytes>>, Failed> {
        let body = Bytes::from(event.webhook());
        let mut request = Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(SIGNATURE, self.secrets.sign(&body))
            .header(IDEMPOTENCY_KEY, turn.id().to_string())
            .header(ATTEMPT, turn.attempt());
        if let Some(fence) = turn.fence() {
            request = request.header(FENCE, HeaderValue::from(fence.0));
        }
        if let Some(trace) = trace::current() {
            request = request.header(TRACEPARENT, trace.as_str());
        }
        let request = request.body(Full::new(body));
        request.map_err(|_| Failed::for_good("the request to the bot cannot be made"))
    }
}

#[async_trait]
impl Handler for Upstream {
    async fn handle(&self, event: &Event, turn: &Turn) -> Result<(), Failed> {
        match self.http.call(self.request(event, turn)?, self.limit).await {
            Ok(reply) => answered(reply.status),
            // The status has said it all: an answer that does not end must not undo it.
            Err(HttpError::Unreadable(status)) => answered(status),
            Err(HttpError::NotSent(_)) => Err(Failed::again("the bot cannot be reached")),
            Err(_) => Err(Failed::unknown("the bot gave no answer")),
        }
    }
}

/// What the bot's status means. 502 and 504 are a proxy's in front of it, which does not know either.
fn answered(status: StatusCode) -> Result<(), Failed> {
    let reason = || format!("the bot answered {}", status.as_u16());
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Err(Failed::unknown(reason())),
        _ => Err(Failed::again(reason())),
    }
}
