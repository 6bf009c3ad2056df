//! RabbitMQ, a durable queue; its own client uses one channel, as its documentation says.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_relay::Sink;
use hapax_relay::sinks::RabbitMqSink;
use hapax_testkit::RabbitMq;
use hapax_workload::{BenchError, BenchOperation, ProcessGroup};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

use super::Broker;
use crate::raw::engine;
use crate::relay::rows::{TOPIC, message};

pub(super) fn start() -> anyhow::Result<Box<dyn Broker>> {
    Ok(Box::new(Rabbit(RabbitMq::start())))
}

struct Rabbit(RabbitMq);

impl Rabbit {
    async fn open(&self) -> anyhow::Result<NatsPublish> {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&self.0.url(), properties).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(TOPIC.into(), durable, FieldTable::default()).await?;
        Ok(NatsPublish { channel, _connection: connection })
    }
}

#[async_trait]
impl Broker for Rabbit {
    fn name(&self) -> &'static str {
        "RabbitMQ"
    }

    fn processes(&self) -> ProcessGroup {
        ProcessGroup::new(self.0.pid().map(i32::cast_unsigned))
    }

    fn sink(&self) -> anyhow::Result<Arc<dyn Sink>> {
        Ok(Arc::new(RabbitMqSink::new(&self.0.url())?))
    }

    async fn client(&self) -> anyhow::Result<Arc<dyn BenchOperation>> {
        Ok(Arc::new(self.open().await?))
    }

    async fn clear(&self) -> anyhow::Result<()> {
        let open = self.open().await?;
        open.channel.queue_purge(TOPIC.into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }
}

struct NatsPublish {
    channel: Channel,
    _connection: Connection,
}

#[async_trait]
impl BenchOperation for NatsPublish {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), BenchError> {
        let item = message(task);
        let properties = BasicProperties::default()
            .with_message_id(item.id.to_string().into())
            .with_delivery_mode(2)
            .with_content_type("application/json".into());
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let publish =
            self.channel.basic_publish("".into(), TOPIC.into(), options, &item.payload, properties);
        match publish.await.map_err(engine)?.await.map_err(engine)? {
            Confirmation::Ack(None) => Ok(()),
            _ => Err(BenchError::Unexpected("a message was not confirmed")),
        }
    }
}
