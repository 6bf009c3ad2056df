//! The configuration of the gateway, its channel and the bot, made from the settings.

#[cfg(test)]
mod tests;

use std::fs;
use std::time::Duration;

use anyhow::Context;
use hapax_line::{Backoff, ChannelSecrets, LineClient, LockRules, UpstreamHandler};

use crate::settings::LineSettings;

/// How much longer than its own timeout a call of the bot may take before the gateway cuts it off:
/// the call ends by itself, and with a better reason.
const CUT_OFF_AFTER: Duration = Duration::from_secs(5);

/// Both ends: LINE, and the bot.
pub(super) struct LineChannel {
    pub(crate) secrets: ChannelSecrets,
    pub(crate) line: LineClient,
    pub(crate) bot: UpstreamHandler,
}

impl LineChannel {
    /// Needs the settings that have no default.
    pub(super) fn new(settings: &LineSettings) -> anyhow::Result<Self> {
        let upstream = settings.upstream.as_ref().context(
            "--upstream is needed: the bot's URL, as in --upstream http://127.0.0.1:3000/callback",
        )?;
        let secret = settings.channel_secret.as_ref().context(
            "LINE_CHANNEL_SECRET is needed: the channel's secret, from the tab `Basic settings` of \
             the LINE Developers Console (beside `hapax line simulate`: simulated-secret)",
        )?;
        let token = settings.channel_access_token.as_ref().context(
            "LINE_CHANNEL_ACCESS_TOKEN is needed: the channel's access token, from the tab \
             `Messaging API` of the LINE Developers Console (beside `hapax line simulate`: \
             simulated-token)",
        )?;
        let secrets = secret.clone();
        let line =
            LineClient::new(settings.api_base.secret(), &token.0.0).context("LINE_API_BASE")?;
        let bot = UpstreamHandler::new(upstream.secret(), secrets.clone()).context("--upstream")?;
        Ok(Self { secrets, line, bot: bot.timeout(settings.handle_timeout) })
    }
}

pub(super) fn gateway_config(settings: &LineSettings) -> anyhow::Result<hapax_line::GatewayConfig> {
    Ok(hapax_line::GatewayConfig::new()
        .rules(rules(settings)?)
        .queue(settings.queue.clone())
        .lease(settings.lease)
        .max_attempts(u32::try_from(settings.max_attempts).unwrap_or(u32::MAX))
        .backoff(Backoff::new(settings.backoff, settings.backoff_max))
        .retention(settings.retention)
        .store_timeout(settings.store_timeout)
        .handler_timeout(settings.handle_timeout + CUT_OFF_AFTER)
        .max_in_flight(settings.in_flight)
        .on_unknown(settings.on_unknown)
        .on_store_error(settings.on_store_error)
        .shutdown_timeout(settings.shutdown_timeout))
}

/// Reads the file also where nothing is locked, so that a mistake in it is found.
fn rules(settings: &LineSettings) -> anyhow::Result<LockRules> {
    let rules = match &settings.rules {
        Some(path) => {
            let name = path.display();
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("--rules: cannot read {name}"))?;
            LockRules::parse(&text).with_context(|| format!("--rules: in {name}"))?
        }
        None => LockRules::default(),
    };
    if !settings.lock.0 {
        return Ok(LockRules::unlocked());
    }
    let rules = rules.with_default_ttl(settings.lock_ttl);
    Ok(match &settings.busy_text {
        Some(text) => rules.with_busy_text(&text.0),
        None => rules,
    })
}
