//! Hints: what went wrong, and what to do about it.

use std::io::ErrorKind;
use std::time::Duration;

use hapax_line::simulator::{WebhookResponse, WebhookSendError};

/// The longest that LINE waits for the response to a webhook.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The addresses and secrets of this run, which hints refer to.
pub(super) struct SimulatorSetup {
    pub(super) to: String,
    /// Whether the secret came from the environment, and is not shown.
    pub(super) own_secret: bool,
    /// Whether the access token came from the environment, and is not shown.
    pub(super) own_token: bool,
    pub(super) base: String,
}

impl SimulatorSetup {
    /// A hint about a webhook that was answered wrongly.
    pub(super) fn about(
        &self,
        delivered: Result<WebhookResponse, WebhookSendError>,
    ) -> Option<String> {
        let to = &self.to;
        let status = match delivered {
            Ok(WebhookResponse { status: 200, took }) if took <= RESPONSE_TIMEOUT => return None,
            Ok(WebhookResponse { status: 200, .. }) => {
                return Some("the answer took more than 2 s: LINE takes that for a failure".into());
            }
            Ok(WebhookResponse { status, .. }) => status,
            Err(WebhookSendError::NotReached(cause)) => {
                let what = match cause {
                    ErrorKind::ConnectionRefused => format!("nothing listens at {to} ({cause})"),
                    _ => format!("{to} cannot be reached"),
                };
                return Some(format!(
                    "{what}: start the bot, or say with --to where it takes webhooks"
                ));
            }
            Err(_) => {
                let text = "took a webhook and did not answer: LINE takes that for a failure";
                return Some(format!("{to} {text}"));
            }
        };
        Some(match status {
            401 => {
                let here = match self.own_secret {
                    true => "that of LINE_CHANNEL_SECRET here",
                    false => "`simulated-secret`, for want of LINE_CHANNEL_SECRET",
                };
                format!(
                    "401: the bot checks signatures with another secret than this, which is {here}; \
                     start both with the same LINE_CHANNEL_SECRET"
                )
            }
            404 => format!(
                "404: nothing takes webhooks at {to}; `hapax line` does at /line/webhook; --to says \
                 where"
            ),
            503 => "503: the bot could not store the events; LINE would count a failure, and \
                    deliver them again where redelivery is turned on"
                .into(),
            status => format!(
                "{status}: LINE expects 200 for whatever it sends, also for events that the bot \
                 does not know"
            ),
        })
    }

    /// A hint about a call that LINE would have refused.
    pub(super) fn about_violation(&self, why: &str) -> String {
        if !why.contains("access token") {
            return why.to_owned();
        }
        let here = match self.own_token {
            true => "that of LINE_CHANNEL_ACCESS_TOKEN here",
            false => "`simulated-token`, for want of LINE_CHANNEL_ACCESS_TOKEN",
        };
        format!("{why}; the right one is {here}")
    }

    /// A hint about a bot that sent nothing at all.
    pub(super) fn about_silence(&self) -> String {
        format!(
            "the bot said nothing to the simulated API: was it started with LINE_API_BASE={}? \
             Perhaps it had nothing to say, or failed: its log knows, and that of `hapax line`",
            self.base
        )
    }
}
