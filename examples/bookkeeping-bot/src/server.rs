//! Assembles the bot, its databases and the gateway.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use example_common::bot_server::{BotServer, SWEEP_INTERVAL, examine};
use hapax::queue::QueueName;
use hapax::{StoreConfig, SystemClock};
use hapax_line::{ChannelSecrets, Gateway, GatewayConfig, LineClient, LockRules};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::bot::BookkeepingBot;
use crate::last::LastTransaction;
use crate::ledger::Ledger;
use crate::moment::LocalTime;
use crate::reader::{FallbackReader, OpenAi, Reader, RuleReader};
use crate::settings::BookkeepingBotArgs;

/// Opens the databases, and creates the bot.
///
/// # Errors
/// If a setting is wrong, or the ledger cannot be opened.
pub async fn open(
    args: &BookkeepingBotArgs,
    metrics: Option<PrometheusHandle>,
) -> anyhow::Result<BotServer> {
    let config = StoreConfig::default().timeout(Duration::from_millis(args.store_timeout_ms));
    let store = hapax::open(&args.store, &config.redis_verbatim(["user:*:last_transaction"]));
    let store = store.context("--store")?;
    examine(&store).await.context("--store")?;
    let ledger = Ledger::open(&args.database).await.context("--database")?;
    hapax::sweep_forever(store.clone(), SWEEP_INTERVAL);
    // Sweep the ledger's database too, because the inbox is there.
    hapax::sweep_forever(hapax::open(&args.database, &StoreConfig::default())?, SWEEP_INTERVAL);

    let reader: Arc<dyn Reader> = match args.openai() {
        Some(settings) => Arc::new(FallbackReader(OpenAi::new(&settings)?, RuleReader)),
        None => Arc::new(RuleReader),
    };
    let last = LastTransaction::new(store.clone(), Duration::from_secs(args.last_transaction_ttl));
    let time = LocalTime::new(Arc::new(SystemClock), args.utc_offset);
    let database = ledger.database.clone();
    let bot = Arc::new(BookkeepingBot::new(reader, ledger, last, time));
    let secret = args.channel_secret.as_deref().context("LINE_CHANNEL_SECRET is missing")?;
    let token =
        args.channel_access_token.as_deref().context("LINE_CHANNEL_ACCESS_TOKEN is missing")?;
    let secrets = ChannelSecrets::new(secret).context("LINE_CHANNEL_SECRET")?;
    let client = LineClient::new(&args.line_api_base, token).context("LINE_API_BASE")?;
    // No locks: versions protect concurrent messages of one user from each other.
    let config = GatewayConfig::new()
        .rules(LockRules::unlocked())
        // Two bots may share a store, so the queue has a name of its own.
        .queue(Some(QueueName::new("bookkeeping-bot")?))
        .lease(Duration::from_secs(args.lease))
        .store_timeout(Duration::from_millis(args.store_budget_ms));
    let gateway = Gateway::new(store.clone(), secrets, client, bot, config);
    Ok(BotServer { gateway, store, database, metrics })
}
