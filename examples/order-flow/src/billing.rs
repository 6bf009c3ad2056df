//! The billing service: inbox and invoice in one transaction, then the acknowledgement.

use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use deadpool_postgres::Pool;
use hapax::inbox::MessageStatus;
use hapax::postgres::HapaxTransaction;
use hapax_relay::consumer::{
    BrokerConsumer, ConsumerConfig, InboundMessage, MessageHandler, MessageHandlerError, NatsSource,
};
use serde::Deserialize;

use crate::{TOPIC, open_database};

const STREAM: &str = "ORDERS";
const TABLE: &str = "CREATE TABLE IF NOT EXISTS invoices (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint NOT NULL)";

#[derive(Deserialize)]
struct Placed {
    order: i64,
}

/// Consumes orders until the process is killed.
pub(crate) async fn run(nats: &str, url: &str) -> anyhow::Result<()> {
    let billing = Billing { pool: open_database(url, TABLE).await? };
    let orders =
        stream::Config { name: STREAM.into(), subjects: vec![TOPIC.into()], ..Default::default() };
    jetstream::new(async_nats::connect(nats).await?).get_or_create_stream(orders).await?;
    let source = NatsSource::new(nats, STREAM, "billing")?;
    // Killed services are restarted soon, so do not give up on an order early.
    let config = ConsumerConfig::new().max_attempts(1000);
    BrokerConsumer::new("billing", source, billing)
        .config(config)
        .run(std::future::pending())
        .await;
    Ok(())
}

struct Billing {
    pool: Pool,
}

#[async_trait]
impl MessageHandler for Billing {
    async fn handle(&self, message: &InboundMessage) -> Result<(), MessageHandlerError> {
        let placed: Placed = serde_json::from_slice(&message.payload)
            .map_err(|_| MessageHandlerError::Poison("this is no order".into()))?;
        self.invoice(&message.id, placed.order)
            .await
            .map_err(|error| MessageHandlerError::Transient(error.to_string()))
    }
}

impl Billing {
    async fn invoice(&self, message: &str, order: i64) -> anyhow::Result<()> {
        let mut client = self.pool.get().await?;
        let mut tx = client.transaction().await?;
        match tx.hapax().receive("billing", message).await? {
            MessageStatus::First => {
                tx.execute("INSERT INTO invoices (order_id) VALUES ($1)", &[&order]).await?;
                Ok(tx.commit().await?)
            }
            MessageStatus::Duplicate => Ok(()),
            MessageStatus::Busy => anyhow::bail!("another delivery of it is at work"),
        }
    }
}
