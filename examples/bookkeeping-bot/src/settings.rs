//! Command-line flags and environment variables.

use clap::Parser;
use hapax_line::LINE_API_BASE;

use crate::moment::Offset;
use crate::reader::OpenAiSettings;

/// A LINE bot that keeps books: each message is booked once, and the last entry can be edited for
/// an hour.
#[derive(Clone, Parser)]
#[command(name = "bookkeeping-bot", version)]
pub struct BookkeepingBotArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8792", value_name = "ADDR")]
    pub listen: String,
    /// Where events wait and last entries are kept: sqlite:FILE, redis://…, postgres://…
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    #[arg(default_value = "sqlite:hapax.db", value_name = "URL")]
    pub store: String,
    /// The ledger: sqlite:FILE or postgres://…
    #[arg(long, env = "BOOKKEEPING_DATABASE", hide_env_values = true)]
    #[arg(default_value = "sqlite:ledger.db", value_name = "URL")]
    pub database: String,
    /// Run a conversation on loopback without an account, print the chat and the ledger, and exit.
    #[arg(long)]
    pub demo: bool,
    /// The channel's secret; two with a comma between them while it is rotated.
    #[arg(long, env = "LINE_CHANNEL_SECRET", hide_env_values = true)]
    #[arg(required_unless_present = "demo")]
    pub channel_secret: Option<String>,
    /// Access token for the channel's API.
    #[arg(long, env = "LINE_CHANNEL_ACCESS_TOKEN", hide_env_values = true)]
    #[arg(required_unless_present = "demo")]
    pub channel_access_token: Option<String>,
    /// Base URL of LINE's API.
    #[arg(long, env = "LINE_API_BASE", default_value = LINE_API_BASE, value_name = "URL")]
    pub line_api_base: String,
    /// Seconds after its last change during which an entry can be edited.
    #[arg(long, env = "LAST_TRANSACTION_TTL", default_value_t = 3600, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=31_622_400))]
    pub last_transaction_ttl: u64,
    /// Seconds until the events of a bot that died are taken over.
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
    /// The users' time zone, as an offset from UTC.
    #[arg(long, env = "BOOKKEEPING_UTC_OFFSET", default_value_t)]
    #[arg(value_name = "OFFSET", allow_hyphen_values = true)]
    pub utc_offset: Offset,
    /// OpenAI-compatible API that reads the messages; if neither it nor a key is set, rules do.
    #[arg(long, env = "OPENAI_API_BASE", value_name = "URL")]
    pub openai_api_base: Option<String>,
    /// Key for the OpenAI-compatible API.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true)]
    pub openai_api_key: Option<String>,
    /// Model that the OpenAI-compatible API uses.
    #[arg(long, env = "OPENAI_MODEL", default_value = "gpt-4o-mini")]
    pub openai_model: String,
}

impl BookkeepingBotArgs {
    /// The endpoint of the model that reads messages; `None` if neither base nor key is set.
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
