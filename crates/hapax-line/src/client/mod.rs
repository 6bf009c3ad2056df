//! A client of LINE's Messaging API: reply, push, loading animation.

mod api_call;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::activity::MessageQuota;
use hapax_core::metric_names;
use hapax_http_client::{HttpClient, get, post};
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderValue};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use self::api_call::ApiCall;
use crate::LineMessage;

/// The address of LINE's API.
pub const LINE_API_BASE: &str = "https://api.line.me";

/// The default of [`LineClient::timeout`].
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls LINE's Messaging API.
///
/// A call is repeated only if that cannot send the message twice:
///
/// | result of an attempt | reply | push | loading |
/// |---|---|---|---|
/// | accepted (2xx) | done | done | done |
/// | no connection | retried | retried | given up |
/// | 429 | retried after the pause that LINE asks for | the same | given up |
/// | timeout, lost connection, 5xx | outcome unknown, never retried | retried with the same retry key | given up |
/// | 409 | refused | already accepted | refused |
/// | any other status | refused | refused | refused |
///
/// There are at most three attempts. The call ends if the next pause would exceed two seconds.
#[derive(Clone)]
pub struct LineClient {
    http: HttpClient,
    /// Without a trailing slash.
    base: Arc<str>,
    authorization: HeaderValue,
    timeout: Duration,
}

/// How LINE accepted a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// LINE accepted the message.
    Accepted,
    /// LINE had already accepted a message with the same retry key.
    AlreadyAccepted,
}

/// Why a message was not sent, or may not have been sent. The cause is logged and not kept, because
/// an error of the HTTP client may name a user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message may or may not have been sent: no answer, a lost connection, or a server error.
    /// The message must not be sent again by other means.
    #[error("LINE gave no answer that says whether it was sent")]
    OutcomeUnknown,
    /// The message was certainly not sent and may be sent later: LINE cannot be reached, or asks
    /// for a pause.
    #[error("LINE takes nothing now")]
    NotNow,
    /// LINE refused the message with this status, and would refuse it again.
    #[error("LINE refused it with {0}")]
    Refused(u16),
    /// The event has no reply token, or its reply token is too old.
    #[error("there is no reply token, or it is too old")]
    NoToken,
    /// A reply to this event was attempted before, with an unknown outcome.
    #[error("a reply was tried before")]
    AlreadyTried,
    /// Nothing may be sent: the event is in standby, or names no chat or user to send to.
    #[error("nothing may be sent to this chat")]
    NotAllowed,
    /// LINE accepts 1 to 5 messages per call, not this number.
    #[error("1 to 5 messages are expected, there are {0}")]
    MessageCount(usize),
}

impl SendError {
    /// Whether the message was certainly not sent, so that sending it again cannot show it twice.
    pub fn is_retry_safe(&self) -> bool {
        !matches!(self, Self::OutcomeUnknown | Self::AlreadyTried)
    }
}

impl LineClient {
    /// A client of the API at `base`: [`LINE_API_BASE`] or the address of a stub, with or without a
    /// path.
    ///
    /// # Errors
    /// If `base` is not an HTTP URL, or the token is not a valid header value.
    pub fn new(base: &str, access_token: &str) -> Result<Self, InvalidApiBase> {
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", access_token.trim()))
            .map_err(|_| InvalidApiBase)?;
        authorization.set_sensitive(true);
        let (http, base) = (HttpClient::new(), check_base(base)?);
        Ok(Self { http, base, authorization, timeout: DEFAULT_TIMEOUT })
    }

    hapax_core::builder_methods! {
        /// Sets the longest time that one attempt may take; 5 s by default.
        timeout: Duration;
    }

    /// Replies to an event. A reply token works once, so the call is repeated only if LINE
    /// certainly did not accept it.
    pub async fn reply(
        &self,
        token: &str,
        messages: &[LineMessage],
    ) -> Result<SendStatus, SendError> {
        let body = json!({ "replyToken": token, "messages": messages });
        send(self.call("reply", "/v2/bot/message/reply", &body), messages).await
    }

    /// Sends messages to a chat. LINE accepts each retry key once.
    pub async fn push(
        &self,
        to: &str,
        messages: &[LineMessage],
        retry_key: Uuid,
    ) -> Result<SendStatus, SendError> {
        let body = json!({ "to": to, "messages": messages });
        let call = self.call("push", "/v2/bot/message/push", &body).retry_key(retry_key);
        send(call, messages).await
    }

    /// Shows the loading animation to a user for 5 to 60 seconds, in steps of 5 (other values are
    /// clamped and rounded up), or until the bot sends a message. Never retried.
    pub async fn show_loading(&self, user: &str, seconds: u8) -> Result<(), SendError> {
        let body = json!({ "chatId": user, "loadingSeconds": round_up_seconds(seconds) });
        let call = self.call("loading", "/v2/bot/chat/loading/start", &body);
        count_sent("loading", call.send_once().await).map(|_| ())
    }

    /// How many messages the channel may send in this month, and has sent. Asked once, and not counted as a call.
    pub async fn quota(&self) -> Result<MessageQuota, SendError> {
        #[derive(Deserialize)]
        struct MonthlyLimit {
            /// Missing where there is no limit.
            value: Option<u64>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Consumption {
            total_usage: u64,
        }
        let limit: MonthlyLimit = self.get("/v2/bot/message/quota").await?;
        let used: Consumption = self.get("/v2/bot/message/quota/consumption").await?;
        Ok(MessageQuota { limit: limit.value, used: used.total_usage })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, SendError> {
        let mut request = get(self.uri(path));
        request.headers_mut().insert(AUTHORIZATION, self.authorization.clone());
        let answer = self.http.call(request, self.timeout).await;
        let answer = answer.map_err(|_| SendError::NotNow)?;
        if !answer.status.is_success() {
            return Err(SendError::Refused(answer.status.as_u16()));
        }
        answer.json().map_err(|_| SendError::NotNow)
    }

    fn call(&self, what: &'static str, path: &str, body: &Value) -> ApiCall<'_> {
        let mut request = post(self.uri(path), body);
        request.headers_mut().insert(AUTHORIZATION, self.authorization.clone());
        ApiCall { http: &self.http, timeout: self.timeout, what, request, is_repeatable: false }
    }

    fn uri(&self, path: &str) -> Uri {
        format!("{}{path}", self.base).parse().expect("the base was checked")
    }
}

/// The base without a trailing slash, if it is a URL that paths can be appended to.
fn check_base(base: &str) -> Result<Arc<str>, InvalidApiBase> {
    let url = Url::parse(base.trim()).map_err(|_| InvalidApiBase)?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !is_plain || !url.has_host() || !matches!(url.scheme(), "http" | "https") {
        return Err(InvalidApiBase);
    }
    let base = url.as_str().trim_end_matches('/');
    base.parse::<Uri>().map_err(|_| InvalidApiBase)?;
    Ok(base.into())
}

/// LINE accepts 5 to 60 seconds, in steps of 5.
fn round_up_seconds(seconds: u8) -> u8 {
    seconds.clamp(5, 60).next_multiple_of(5)
}

async fn send(call: ApiCall<'_>, messages: &[LineMessage]) -> Result<SendStatus, SendError> {
    let sent = match messages.len() {
        1..=5 => call.send().await,
        // LINE would refuse the call and use up the reply token.
        count => Err(SendError::MessageCount(count)),
    };
    count_sent(call.what, sent)
}

fn count_sent(
    what: &'static str,
    sent: Result<SendStatus, SendError>,
) -> Result<SendStatus, SendError> {
    let result = match &sent {
        Ok(SendStatus::Accepted) => "accepted",
        Ok(SendStatus::AlreadyAccepted) => "before",
        Err(SendError::OutcomeUnknown) => "uncertain",
        Err(SendError::NotNow) => "not_now",
        Err(SendError::Refused(_)) => "refused",
        Err(_) => "not_tried",
    };
    metrics::counter!(metric_names::LINE_SENT, "what" => what, "result" => result).increment(1);
    sent
}

/// Omits the access token and the API's address.
impl fmt::Debug for LineClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineClient").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// The API base is not a valid URL, or the access token is not a valid header value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a URL such as https://api.line.me is expected, and a token that a header can carry")]
pub struct InvalidApiBase;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_base_may_have_path_and_trailing_slash() {
        for (base, expected) in [
            ("https://api.line.me", "https://api.line.me/v2"),
            ("https://api.line.me/", "https://api.line.me/v2"),
            ("http://127.0.0.1:8080/line/", "http://127.0.0.1:8080/line/v2"),
            ("http://[::1]:8080/line//", "http://[::1]:8080/line/v2"),
        ] {
            assert_eq!(LineClient::new(base, "t").unwrap().uri("/v2"), expected);
        }
    }

    #[test]
    fn client_invalid_base_or_token_is_refused() {
        for base in [
            "",
            "api.line.me",
            "ftp://a",
            "https://",
            "https://u:p@a",
            "https://a?b",
            "https://a#b",
        ] {
            assert_eq!(LineClient::new(base, "t").unwrap_err(), InvalidApiBase, "{base}");
        }
        assert!(LineClient::new(LINE_API_BASE, "to\nken").is_err());
    }

    #[test]
    fn client_loading_seconds_are_rounded_up() {
        let rounded = [0, 1, 5, 6, 20, 58, 60, 61, 255].map(round_up_seconds);
        assert_eq!(rounded, [5, 5, 5, 10, 20, 60, 60, 60, 60]);
    }

    #[test]
    fn client_debug_output_hides_the_token() {
        let client = LineClient::new(LINE_API_BASE, "very-secret").unwrap();
        assert!(!format!("{client:?}").contains("very-secret"));
    }
}
