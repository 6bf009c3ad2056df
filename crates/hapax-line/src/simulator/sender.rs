//! Sends signed webhooks, as LINE does.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use hapax_http_client::{HttpClient, HttpError};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Uri};
use serde_json::{Value, json};
use tokio::time::Instant;
use url::Url;

use crate::{ChannelSecrets, InvalidApiBase, SIGNATURE_HEADER};

/// LINE waits 2 s for an answer; the simulator waits longer, to measure how late an answer is.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends webhooks to a bot, as LINE does.
#[derive(Clone)]
pub struct WebhookSender {
    http: HttpClient,
    url: Uri,
    secrets: ChannelSecrets,
    destination: String,
}

/// The bot's answer to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebhookResponse {
    /// The status; LINE expects 200.
    pub status: u16,
    /// The time until the answer; LINE expects less than 2 s.
    pub took: Duration,
}

/// Why a webhook got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookSendError {
    /// No connection could be made.
    #[error("nobody could be reached there: {0}")]
    NotReached(io::ErrorKind),
    /// The webhook was sent, but the connection was lost or no answer came within 30 s.
    #[error("it was sent, and no answer came")]
    NoAnswer,
}

impl WebhookSender {
    /// Sends to this URL, for the bot `destination`; the first secret signs.
    pub fn new(
        url: &str,
        secrets: &ChannelSecrets,
        destination: &str,
    ) -> Result<Self, InvalidApiBase> {
        let url = Url::parse(url).map_err(|_| InvalidApiBase)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(InvalidApiBase);
        }
        Ok(Self {
            http: HttpClient::new(),
            url: url.as_str().parse().map_err(|_| InvalidApiBase)?,
            secrets: secrets.clone(),
            destination: destination.into(),
        })
    }

    /// Sends events in one signed webhook.
    pub async fn send(&self, events: &[Value]) -> Result<WebhookResponse, WebhookSendError> {
        let body = json!({ "destination": self.destination, "events": events }).to_string();
        let signature = self.secrets.sign(body.as_bytes());
        self.send_raw(body.into(), Some(&signature)).await
    }

    /// Sends any body, with any signature that a header can carry, or without a signature.
    pub async fn send_raw(
        &self,
        body: Bytes,
        signature: Option<&str>,
    ) -> Result<WebhookResponse, WebhookSendError> {
        let mut request = Request::post(self.url.clone())
            .header(CONTENT_TYPE, "application/json; charset=utf-8")
            .body(Full::new(body))
            .expect("the URL was checked");
        if let Some(signature) = signature.and_then(|text| HeaderValue::from_str(text).ok()) {
            request.headers_mut().insert(SIGNATURE_HEADER, signature);
        }
        let start = Instant::now();
        let status = match self.http.call(request, TIMEOUT).await {
            Ok(reply) => reply.status,
            Err(HttpError::Unreadable(status)) => status,
            Err(HttpError::NotSent(cause)) => return Err(WebhookSendError::NotReached(cause)),
            Err(_) => return Err(WebhookSendError::NoAnswer),
        };
        Ok(WebhookResponse { status: status.as_u16(), took: start.elapsed() })
    }
}

#[cfg(test)]
mod tests {
    use hapax_testkit::{HttpStub, StubAnswer};

    use super::*;
    use crate::simulator::events;

    fn secrets() -> ChannelSecrets {
        ChannelSecrets::new("simulated-secret").unwrap()
    }

    #[tokio::test]
    async fn sender_signs_webhook_and_returns_status() {
        let answer = "HTTP/1.1 418 no\r\ncontent-length: 0\r\n\r\n";
        let bot = HttpStub::start(move |_| StubAnswer::RespondAndClose(answer.into()));
        let url = bot.url("/line/webhook?x=1");
        let sender = WebhookSender::new(&url, &secrets(), "Uf00db07").unwrap();
        let sent = [events::text("Uf00d1", "台北 🥚"), events::follow("Uf00d1")];
        assert_eq!(sender.send(&sent).await.unwrap().status, 418);
        let request = bot.requests().remove(0);
        assert_eq!(request.line, "POST /line/webhook?x=1 HTTP/1.1");
        assert!(secrets().verify(&request.body, &request.headers[SIGNATURE_HEADER]));
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body, json!({ "destination": "Uf00db07", "events": sent }));
    }

    #[tokio::test]
    async fn sender_tells_no_connection_from_no_answer() {
        let nobody = format!("http://127.0.0.1:{}/", hapax_testkit::free_port());
        let sender = WebhookSender::new(&nobody, &secrets(), "Uf00db07").unwrap();
        let refused = WebhookSendError::NotReached(io::ErrorKind::ConnectionRefused);
        assert_eq!(sender.send(&[]).await, Err(refused));
        let cuts = HttpStub::start(|_| StubAnswer::RespondAndClose(String::new()));
        let sender = WebhookSender::new(&cuts.url("/"), &secrets(), "Uf00db07").unwrap();
        let failed = sender.send_raw("🥚".into(), None).await;
        assert_eq!(failed, Err(WebhookSendError::NoAnswer));
        assert!(!cuts.requests()[0].headers.contains_key(SIGNATURE_HEADER));
    }

    #[test]
    fn sender_refuses_non_http_url() {
        for url in ["", "localhost:8789", "ftp://127.0.0.1/", "http://", "/line/webhook"] {
            assert_eq!(
                WebhookSender::new(url, &secrets(), "Uf00db07").err(),
                Some(InvalidApiBase),
                "{url}"
            );
        }
    }
}
