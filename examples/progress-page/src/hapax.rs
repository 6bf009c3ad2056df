//! A client for the two calls that a service needs: publish an event, and link a browser to a job.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use ureq::Agent;

use crate::link;

/// Timeout of one attempt; longer than hapax's own limit for a request.
const LIMIT: Duration = Duration::from_secs(10);
/// Pause before the second attempt; doubled for each further one up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Limit for all attempts together; a restart, an upgrade or a failover takes less.
const RETRY_TIMEOUT: Duration = Duration::from_secs(600);

/// A client for one hapax server.
#[derive(Clone)]
pub struct Hapax {
    url: String,
    access: Option<Access>,
    agent: Agent,
}

/// Credentials for a hapax server that requires access tokens.
#[derive(Clone)]
pub struct Access {
    /// The service's own token.
    pub token: String,
    /// The tenant of that token.
    pub tenant: String,
    /// The secret that signs links for browsers: hapax's setting `sse.secret`.
    pub secret: String,
    /// Lifetime of a link; the page requests the next one by itself.
    pub link_lifetime: Duration,
}

impl Hapax {
    /// A client for the server at this URL, such as `http://127.0.0.1:8787`.
    pub fn at(url: &str, access: Option<Access>) -> Self {
        let config = Agent::config_builder().http_status_as_error(false);
        let agent = config.timeout_global(Some(LIMIT)).build().into();
        Self { url: url.trim_end_matches('/').to_owned(), access, agent }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Publishes an event, retrying until hapax confirms it. A retry is safe even if an earlier
    /// attempt succeeded without an answer: hapax stores the same event once.
    pub(crate) fn publish(&self, event: &Value) -> anyhow::Result<()> {
        let (since, mut pause) = (Instant::now(), PAUSE);
        loop {
            let refused = match self.post("/v1/events", event) {
                Ok((200 | 201, _)) => return Ok(()),
                Ok((status @ (429 | 500..), _)) => format!("hapax answers {status}"),
                Ok((status, problem)) => bail!("hapax answers {status}: {problem}"),
                Err(error) => error.to_string(),
            };
            if since.elapsed() > RETRY_TIMEOUT {
                bail!("{refused}, for {RETRY_TIMEOUT:?}");
            }
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// The URL at which a browser follows the job. A browser sends no token, so the link is signed.
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
