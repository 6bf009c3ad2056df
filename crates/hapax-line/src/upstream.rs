//! A bot that the gateway calls at a URL.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::trace::{self, TRACEPARENT};
use hapax_http_client::{HttpClient, HttpError};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use url::Url;

use crate::{
    ChannelSecrets, EventContext, EventHandlerError, LineEvent, LineEventHandler, SIGNATURE_HEADER,
};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const ATTEMPT: HeaderName = HeaderName::from_static("hapax-attempt");
const FENCE: HeaderName = HeaderName::from_static("hapax-fence");

/// A [`LineEventHandler`] that posts each event to a URL, as a webhook with that event alone.
///
/// The body contains the event's bytes as LINE sent them, and `X-Line-Signature` is computed for
/// the new body, so a bot that accepts webhooks from LINE accepts these. `Idempotency-Key` is the
/// same for every attempt of an event, `Hapax-Attempt` is the attempt's number, and `Hapax-Fence`
/// grows ([`EventContext::fence`]).
///
/// | the bot's answer | result |
/// |---|---|
/// | 2xx | handled |
/// | any other status but those below, redirects included | retried; uses up an attempt |
/// | cannot be reached | waited for; uses up no attempt |
/// | 408, 425, 429, 503 | retried; uses up an attempt only if the bot handled another event since |
/// | 502, 504, no answer in time, a lost connection | the same, but the outcome is unknown: [`GatewayConfig::on_unknown`](crate::GatewayConfig::on_unknown) |
///
/// ```
/// use hapax_line::{ChannelSecrets, UpstreamHandler};
/// let secrets = ChannelSecrets::new("channel secret").unwrap();
/// assert!(UpstreamHandler::new("http://127.0.0.1:3000/callback", secrets.clone()).is_ok());
/// assert!(UpstreamHandler::new("127.0.0.1:3000", secrets).is_err());
/// ```
pub struct UpstreamHandler {
    uri: Uri,
    secrets: ChannelSecrets,
    http: HttpClient,
    timeout: Duration,
}

/// The URL is not a valid address of a bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a URL such as http://127.0.0.1:3000/callback is expected, without user and password: the bot \
     knows us by the signature"
)]
pub struct InvalidUpstreamUrl;

impl UpstreamHandler {
    /// A bot at this URL. Requests are signed with the first of these secrets.
    ///
    /// # Errors
    /// If the URL is not `http://` or `https://`, or contains a user or a password.
    pub fn new(url: &str, secrets: ChannelSecrets) -> Result<Self, InvalidUpstreamUrl> {
        let url = Url::parse(url).map_err(|_| InvalidUpstreamUrl)?;
        let has_no_user = url.username().is_empty() && url.password().is_none();
        if !matches!(url.scheme(), "http" | "https") || !has_no_user {
            return Err(InvalidUpstreamUrl);
        }
        let uri = url.as_str().parse().map_err(|_| InvalidUpstreamUrl)?;
        Ok(Self { uri, secrets, http: HttpClient::new(), timeout: DEFAULT_TIMEOUT })
    }

    hapax_core::builder_methods! {
        /// Sets the longest time that the bot may take for one event; 30 s by default. Keep
        /// [`GatewayConfig::handler_timeout`](crate::GatewayConfig::handler_timeout) longer.
        timeout: Duration;
    }

    fn request(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<Request<Full<Bytes>>, EventHandlerError> {
        let body = Bytes::from(event.webhook());
        let mut request = Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(SIGNATURE_HEADER, self.secrets.sign(&body))
            .header(IDEMPOTENCY_KEY, context.id().to_string())
            .header(ATTEMPT, context.attempt());
        if let Some(fence) = context.fence() {
            request = request.header(FENCE, HeaderValue::from(fence.0));
        }
        if let Some(trace) = trace::current() {
            request = request.header(TRACEPARENT, trace.as_str());
        }
        let request = request.body(Full::new(body));
        request.map_err(|_| EventHandlerError::permanent("the request to the bot cannot be made"))
    }
}

#[async_trait]
impl LineEventHandler for UpstreamHandler {
    async fn handle(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        match self.http.call(self.request(event, context)?, self.timeout).await {
            Ok(reply) => read_status(reply.status),
            // The status decides: a response body that does not end must not undo it.
            Err(HttpError::Unreadable(status)) => read_status(status),
            Err(HttpError::NotSent(_)) => Err(EventHandlerError::away("the bot cannot be reached")),
            Err(_) => Err(EventHandlerError::unknown("the bot gave no answer")),
        }
    }
}

/// The result for a status of the bot. 502 and 504 come from a proxy in front of the bot, which
/// does not know the outcome either.
fn read_status(status: StatusCode) -> Result<(), EventHandlerError> {
    let reason = || format!("the bot answered {}", status.as_u16());
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
            Err(EventHandlerError::unknown(reason()))
        }
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE => Err(EventHandlerError::rejected(reason())),
        _ => Err(EventHandlerError::retry(reason())),
    }
}
