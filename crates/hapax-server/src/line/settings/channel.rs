//! What the library is told.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hapax_line::{LineClient, Rules, Secrets, Upstream};

use super::Settings;

/// How much longer than its own limit the call to the bot may take before it is cut off: it ends
/// itself, and says why.
const SLACK: Duration = Duration::from_secs(5);

/// Both ends: LINE, and the bot.
pub(crate) struct Channel {
    pub(crate) secrets: Secrets,
    pub(crate) line: LineClient,
    pub(crate) bot: Upstream,
}

impl Settings {
    /// What has no default.
    pub(crate) fn channel(&self) -> anyhow::Result<Channel> {
        let upstream = self.upstream.as_ref().context(
            "--upstream is needed: the bot's URL, as in --upstream http://127.0.0.1:3000/callback",
        )?;
        let secret = self.channel_secret.as_ref().context(
            "LINE_CHANNEL_SECRET is needed: the channel's secret, from the tab `Basic settings` of \
             the LINE Developers Console (beside `hapax line simulate`: simulated-secret)",
        )?;
        let token = self.access_token.as_ref().context(
            "LINE_CHANNEL_ACCESS_TOKEN is needed: the channel's access token, from the tab \
             `Messaging API` of the LINE Developers Console (beside `hapax line simulate`: \
             simulated-token)",
        )?;
        let secrets = secret.0.clone();
        let line = LineClient::new(self.api_base.secret(), &token.0).context("LINE_API_BASE")?;
        let bot = Upstream::new(upstream.secret(), secrets.clone()).context("--upstream")?;
        Ok(Channel { secrets, line, bot: bot.limit(self.handle_timeout) })
    }

    pub(crate) fn gateway(&self) -> anyhow::Result<hapax_line::Settings> {
        Ok(hapax_line::Settings {
            rules: Arc::new(self.rules()?),
            lease: self.lease,
            max_attempts: u32::try_from(self.max_attempts).unwrap_or(u32::MAX),
            backoff: self.backoff,
            backoff_max: self.backoff_max,
            remember: self.remember,
            store_budget: self.store_timeout,
            handle_limit: self.handle_timeout + SLACK,
            in_flight: self.in_flight,
            on_unknown: self.on_unknown,
            on_store_error: self.on_store_error,
            stop_limit: self.shutdown_timeout,
            ..hapax_line::Settings::default()
        })
    }

    /// A file with a mistake is one also where nothing is locked.
    fn rules(&self) -> anyhow::Result<Rules> {
        let rules = match &self.rules {
            Some(path) => {
                let name = path.display();
                let text = fs::read_to_string(path);
                let text = text.with_context(|| format!("--rules: cannot read {name}"))?;
                Rules::parse(&text).with_context(|| format!("--rules: in {name}"))?
            }
            None => Rules::default(),
        };
        if !self.lock.0 {
            return Ok(Rules::unlocked());
        }
        let rules = rules.with_default_ttl(self.lock_ttl);
        Ok(match &self.busy_text {
            Some(text) => rules.with_busy_text(&text.0),
            None => rules,
        })
    }
}
