//! Flags and variables.

use std::time::Duration;

use clap::Parser;
use hapax_line::LINE_API_BASE;

use crate::moment::Offset;
use crate::reader::OpenAiSettings;

/// A LINE bot that keeps books: each message is booked once, and the last entry may be edited for an
/// hour.
#[derive(Clone, Parser)]
#[command(name = "bookkeeping-bot", version)]
pub struct BookkeepingBotArgs {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8792", value_name = "ADDR")]
    pub listen: String,
    /// Where events wait and last entries are kept: sqlite:FILE, redis://…, postgres://…
    #[arg(
        long,
        env = "REDIS_URL",
        hide_env_values = true,
        default_value = "sqlite:hapax.db",
        value_name = "URL"
    )]
    pub store: String,
    /// The ledger: sqlite:FILE or postgres://…
    #[arg(
        long,
        env = "BOOKKEEPING_DATABASE",
        hide_env_values = true,
        default_value = "sqlite:ledger.db",
        value_name = "URL"
    )]
    pub database: String,
    /// Talks to itself, on loopback and without an account, shows the chat and the ledger, and ends.
    #[arg(long)]
    pub demo: bool,
    /// The channel's secret; two with a comma between them while it is rotated.
    #[arg(
        long,
        env = "LINE_CHANNEL_SECRET",
        hide_env_values = true,
        required_unless_present = "demo"
    )]
    pub channel_secret: Option<String>,
    /// What the channel's API is called with.
    #[arg(
        long,
        env = "LINE_CHANNEL_ACCESS_TOKEN",
        hide_env_values = true,
        required_unless_present = "demo"
    )]
    pub channel_access_token: Option<String>,
    /// LINE's API.
    #[arg(long, env = "LINE_API_BASE", default_value = LINE_API_BASE, value_name = "URL")]
    pub line_api_base: String,
    /// For how many seconds after its last change an entry may be edited.
    #[arg(long, env = "LAST_TRANSACTION_TTL", default_value_t = 3600, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=31_622_400))]
    pub last_transaction_ttl: u64,
    /// For how many seconds a bot that died is believed to be at work on its events.
    #[arg(long, default_value_t = 30, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub lease: u64,
    /// How long one store call may take, in milliseconds: a webhook's wait and two calls, a read and a
    /// write, are less than two seconds.
    #[arg(long, default_value_t = 600, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub store_timeout_ms: u64,
    /// How long a webhook waits for the store before its events are handled without it.
    #[arg(long, default_value_t = 500, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub store_budget_ms: u64,
    /// The users' time zone, as its distance from Greenwich.
    #[arg(
        long,
        env = "BOOKKEEPING_UTC_OFFSET",
        default_value_t,
        value_name = "OFFSET",
        allow_hyphen_values = true
    )]
    pub utc_offset: Offset,
    /// An OpenAI-compatible API that reads messages; without it and a key, rules do.
    #[arg(long, env = "OPENAI_API_BASE", value_name = "URL")]
    pub openai_api_base: Option<String>,
    /// Its key.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    pub openai_api_key: Option<String>,
    /// Its model.
    #[arg(long, env = "OPENAI_MODEL", default_value = "gpt-4o-mini")]
    pub openai_model: String,
}

impl BookkeepingBotArgs {
    /// How long an entry may be edited after its last change.
    pub fn ttl(&self) -> Duration {
        Duration::from_secs(self.last_transaction_ttl)
    }

    /// How long one store call may take.
    pub fn store_timeout(&self) -> Duration {
        Duration::from_millis(self.store_timeout_ms)
    }

    /// Which model reads messages, if one does.
    pub fn openai(&self) -> Option<OpenAiSettings> {
        let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (base, key) = (set(&self.openai_api_base), set(&self.openai_api_key));
        if base.is_none() && key.is_none() {
            return None;
        }
        let base = base.unwrap_or_else(|| "https://api.openai.com/v1".into());
        Some(OpenAiSettings { base, key, model: self.openai_model.clone() })
    }
}
