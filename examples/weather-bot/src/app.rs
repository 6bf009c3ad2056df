//! Assembles the gateway, the bot and its databases.

use std::sync::Arc;

use anyhow::Context;
use example_common::bot_server::{BotServer, SWEEP_INTERVAL, examine};
use hapax::StoreConfig;
use hapax::queue::QueueName;
use hapax_line::{Gateway, GatewayConfig};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::bot::WeatherBot;
use crate::settings::WeatherBotSettings;
use crate::users::Users;

/// Opens the databases, and creates the bot. A store or a database that is not up yet is no error:
/// the bot starts without it, and uses it as soon as it answers.
pub(crate) async fn open(
    settings: WeatherBotSettings,
    metrics: Option<PrometheusHandle>,
) -> anyhow::Result<BotServer> {
    let config = StoreConfig::default().redis_verbatim(["processing:*"]);
    let store = hapax::open(&settings.store, &config).context("--store")?;
    examine(&store).await.context("--store")?;
    hapax::sweep_forever(store.clone(), SWEEP_INTERVAL);
    let users = Users::open(&settings.database, settings.database_timeout);
    let users = users.await.context("--database")?;
    let database = users.database.clone();
    let bot = Arc::new(WeatherBot::new(users, settings.weather));
    let config = GatewayConfig::new()
        .rules(settings.rules)
        // Two bots may share a store, so the queue has a name of its own.
        .queue(Some(QueueName::new("weather-bot")?))
        .store_timeout(settings.store_timeout);
    let gateway = Gateway::new(store.clone(), settings.secrets, settings.line, bot, config);
    Ok(BotServer { gateway, store, database, metrics })
}
