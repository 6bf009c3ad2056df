//! LINE's Messaging API: reply, push, loading animation.

mod tries;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::metric_names;
use hapax_http_client::{HttpClient, post};
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderValue};
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use self::tries::Letter;
use crate::Message;

/// LINE's own address.
pub const LINE_API_BASE: &str = "https://api.line.me";

/// How long LINE may take to answer, unless [`LineClient::limit`] says otherwise.
const LIMIT: Duration = Duration::from_secs(5);

/// Calls LINE's Messaging API.
///
/// What is sent may be sent again only where that cannot say it twice:
///
/// | what became of a try | reply | push | loading |
/// |---|---|---|---|
/// | accepted (2xx) | done | done | done |
/// | no connection | again | again | given up |
/// | 429 | again, after the pause that LINE asks for | the same | given up |
/// | no answer in time, a cut, 5xx | uncertain, and never again | again, with the same retry key | given up |
/// | 409 | refused | done before | refused |
/// | any other status | refused | refused | refused |
///
/// There are at most three tries. A pause of more than two seconds is not waited for here.
#[derive(Clone)]
pub struct LineClient {
    http: HttpClient,
    /// Without a slash at its end.
    base: Arc<str>,
    authorization: HeaderValue,
    limit: Duration,
}

/// What became of something that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// LINE took it.
    Accepted,
    /// LINE had taken it before, by its retry key.
    Before,
}

/// Why something was not sent, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// It may or may not have been sent: no answer, a cut, a server error. Never send it a second
    /// time in another way.
    #[error("LINE gave no answer that says whether it was sent")]
    Uncertain,
    /// It was certainly not sent, and may be later: LINE cannot be reached, or asks for a pause.
    #[error("LINE takes nothing now")]
    NotNow,
    /// LINE refused it with this status, and would again.
    #[error("LINE refused it with {0}")]
    Refused(u16),
    /// The event has no reply token, or it is too old.
    #[error("there is no reply token, or it is too old")]
    NoToken,
    /// A reply to this event was tried before; nobody knows what became of it.
    #[error("a reply was tried before")]
    TriedBefore,
    /// The event's chat takes nothing: it is in standby, or has no address.
    #[error("nothing may be sent to this chat")]
    NotAllowed,
    /// LINE takes 1 to 5 messages at once.
    #[error("1 to 5 messages are expected, there are {0}")]
    Count(usize),
}

impl LineClient {
    /// A client of the API at `base` ([`LINE_API_BASE`], or a stub's; it may have a path).
    ///
    /// # Errors
    /// Where `base` is no URL of HTTP, or the token cannot stand in a header.
    pub fn new(base: &str, access_token: &str) -> Result<Self, InvalidBase> {
        let mut authorization = HeaderValue::from_str(&format!("Bearer {}", access_token.trim()))
            .map_err(|_| InvalidBase)?;
        authorization.set_sensitive(true);
        Ok(Self { http: HttpClient::new(), base: checked(base)?, authorization, limit: LIMIT })
    }

    /// How long LINE may take to answer one try; 5 s unless this is called.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Replies to an event. A token works once, so this is asked again only where LINE certainly took
    /// nothing.
    pub async fn reply(&self, token: &str, messages: &[Message]) -> Result<Sent, SendError> {
        let body = json!({ "replyToken": token, "messages": messages });
        let letter = self.letter("reply", "/v2/bot/message/reply", &body);
        deliver(letter, messages).await
    }

    /// Sends to a chat. The same key is the same message: asked again, LINE sends it once.
    pub async fn push(
        &self,
        to: &str,
        messages: &[Message],
        retry_key: Uuid,
    ) -> Result<Sent, SendError> {
        let body = json!({ "to": to, "messages": messages });
        let letter = self.letter("push", "/v2/bot/message/push", &body).retry_key(retry_key);
        deliver(letter, messages).await
    }

    /// Shows the loading animation to a user for some seconds (5 to 60, in steps of 5; others are
    /// rounded up), or until the bot says something. Tried once: it is a courtesy.
    pub async fn loading(&self, user: &str, seconds: u8) -> Result<(), SendError> {
        let body = json!({ "chatId": user, "loadingSeconds": in_steps(seconds) });
        let letter = self.letter("loading", "/v2/bot/chat/loading/start", &body);
        counted("loading", letter.deliver_once().await).map(|_| ())
    }

    fn letter(&self, what: &'static str, path: &str, body: &Value) -> Letter<'_> {
        let mut request = post(self.at(path), body);
        request.headers_mut().insert(AUTHORIZATION, self.authorization.clone());
        Letter { http: &self.http, limit: self.limit, what, request, repeatable: false }
    }

    fn at(&self, path: &str) -> Uri {
        format!("{}{path}", self.base).parse().expect("the base was checked")
    }
}

/// The base without a slash at its end, if it is a URL that paths can be added to.
fn checked(base: &str) -> Result<Arc<str>, InvalidBase> {
    let url = Url::parse(base.trim()).map_err(|_| InvalidBase)?;
    let plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if !plain || !url.has_host() || !matches!(url.scheme(), "http" | "https") {
        return Err(InvalidBase);
    }
    let base = url.as_str().trim_end_matches('/');
    base.parse::<Uri>().map_err(|_| InvalidBase)?;
    Ok(base.into())
}

/// LINE takes 5 to 60 seconds, in steps of 5.
fn in_steps(seconds: u8) -> u8 {
    seconds.clamp(5, 60).next_multiple_of(5)
}

async fn deliver(letter: Letter<'_>, messages: &[Message]) -> Result<Sent, SendError> {
    let sent = match messages.len() {
        1..=5 => letter.deliver().await,
        // LINE would refuse it, and the token of a reply would be gone.
        count => Err(SendError::Count(count)),
    };
    counted(letter.what, sent)
}

fn counted(what: &'static str, sent: Result<Sent, SendError>) -> Result<Sent, SendError> {
    let result = match &sent {
        Ok(Sent::Accepted) => "accepted",
        Ok(Sent::Before) => "before",
        Err(SendError::Uncertain) => "uncertain",
        Err(SendError::NotNow) => "not_now",
        Err(SendError::Refused(_)) => "refused",
        Err(_) => "not_tried",
    };
    metrics::counter!(metric_names::LINE_SENT, "what" => what, "result" => result).increment(1);
    sent
}

/// Shows neither the access token nor where it is used.
impl fmt::Debug for LineClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineClient").field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// What is no address of an API, or no token for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a URL such as https://api.line.me is expected, and a token that a header can carry")]
pub struct InvalidBase;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_may_have_a_path_and_a_slash_at_its_end() {
        for (base, expected) in [
            ("https://api.line.me", "https://api.line.me/v2"),
            ("https://api.line.me/", "https://api.line.me/v2"),
            ("http://127.0.0.1:8080/line/", "http://127.0.0.1:8080/line/v2"),
            ("http://[::1]:8080/line//", "http://[::1]:8080/line/v2"),
        ] {
            assert_eq!(LineClient::new(base, "t").unwrap().at("/v2"), expected);
        }
    }

    #[test]
    fn what_is_no_base_or_no_token_is_refused_at_once() {
        for base in [
            "",
            "api.line.me",
            "ftp://a",
            "https://",
            "https://u:p@a",
            "https://a?b",
            "https://a#b",
        ] {
            assert_eq!(LineClient::new(base, "t").unwrap_err(), InvalidBase, "{base}");
        }
        assert!(LineClient::new(LINE_API_BASE, "to\nken").is_err());
    }

    #[test]
    fn the_animations_seconds_are_rounded_up_to_what_line_takes() {
        let rounded = [0, 1, 5, 6, 20, 58, 60, 61, 255].map(in_steps);
        assert_eq!(rounded, [5, 5, 5, 10, 20, 60, 60, 60, 60]);
    }

    #[test]
    fn a_client_shows_no_token() {
        let client = LineClient::new(LINE_API_BASE, "very-secret").unwrap();
        assert!(!format!("{client:?}").contains("very-secret"));
    }
}
