//! The two things that a service wants of hapax: to keep an event, and to let a browser follow.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use ureq::Agent;

use crate::link;

/// For one attempt; longer than hapax itself may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Before the second attempt; doubled for each further one up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// For all attempts together: a restart, an upgrade or a failover takes less.
const PATIENCE: Duration = Duration::from_secs(600);

/// A running hapax.
#[derive(Clone)]
pub struct Hapax {
    url: String,
    access: Option<Access>,
    agent: Agent,
}

/// What a hapax with tokens wants to see.
#[derive(Clone)]
pub struct Access {
    /// The service's own token.
    pub token: String,
    /// The tenant of that token.
    pub tenant: String,
    /// What links for browsers are signed with: the setting `sse.secret` of hapax.
    pub secret: String,
    /// How long a link is good; the page asks for the next one by itself.
    pub link_lifetime: Duration,
}

impl Hapax {
    /// At this address, `http://127.0.0.1:8787`.
    pub fn at(url: &str, access: Option<Access>) -> Self {
        let config = Agent::config_builder().http_status_as_error(false);
        let agent = config.timeout_global(Some(LIMIT)).build().into();
        Self { url: url.trim_end_matches('/').to_owned(), access, agent }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Publishes an event, however often it takes: whatever became of an attempt without an answer,
    /// the same event again is the same event.
    pub(crate) fn publish(&self, event: &Value) -> anyhow::Result<()> {
        let (since, mut pause) = (Instant::now(), PAUSE);
        loop {
            let refused = match self.post("/v1/events", event) {
                Ok((200 | 201, _)) => return Ok(()),
                Ok((status @ (429 | 500..), _)) => format!("hapax answers {status}"),
                Ok((status, problem)) => bail!("hapax answers {status}: {problem}"),
                Err(error) => error.to_string(),
            };
            if since.elapsed() > PATIENCE {
                bail!("{refused}, for {PATIENCE:?}");
            }
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Where a browser follows the job: it sends no token of its own, so the link says what it may see.
    pub(crate) fn link(&self, domain: &str, job: &str) -> String {
        let name = utf8_percent_encode(job, NON_ALPHANUMERIC);
        let url = format!("{}/v1/jobs/{domain}/{name}/events", self.url);
        match &self.access {
            Some(access) => format!("{url}?access={}", link::sign(access, domain, job)),
            None => url,
        }
    }

    fn post(&self, path: &str, body: &Value) -> anyhow::Result<(u16, String)> {
        let mut request = self.agent.post(format!("{}{path}", self.url));
        request = request.header("content-type", "application/json");
        if let Some(Access { token, .. }) = &self.access {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = request.send(body.to_string()).context("hapax gives no answer")?;
        let text = response.body_mut().read_to_string().context("the answer was cut")?;
        Ok((response.status().as_u16(), text))
    }
}
