//! Receives messages from a RabbitMQ queue.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery as Raw;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, Confirmation, Connection};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{sleep, timeout};

use super::{Deliveries, InboundMessage, MessageDelivery, MessageSource};
use crate::DeliveryError;
use crate::broker_ca::{self, UNTRUSTED};
use crate::sinks::EndpointConfigError;
use crate::sinks::amqp::RabbitAddress;

/// How long one `receive` waits for a message.
const RECEIVE_WAIT: Duration = Duration::from_secs(1);
/// The longest that connecting may take; heartbeats detect a dead connection afterwards.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The most unacknowledged messages of this process: those being handled, and those waiting for a
/// retry.
const PREFETCH: u16 = 256;
/// The most messages whose attempts this process counts; only quorum queues count attempts
/// themselves.
const MAX_COUNTED: usize = 10_000;
const REASON: &str = "hapax-dead-reason";

/// A RabbitMQ queue. Messages that fail for good go to the durable queue `QUEUE.dead`.
///
/// A message to be retried stays unacknowledged in this process, and is requeued after its backoff.
pub struct RabbitMqSource {
    broker: RabbitAddress,
    queue: String,
    open: AsyncMutex<Option<RabbitConsumer>>,
    attempts: Arc<Mutex<HashMap<String, u32>>>,
}

struct RabbitConsumer {
    consumer: lapin::Consumer,
    dead: Channel,
    _connection: Connection,
}

impl RabbitMqSource {
    /// Consumes this queue, which must exist.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn new(url: &str, queue: &str) -> Result<Self, EndpointConfigError> {
        let (broker, queue) = (RabbitAddress::parse(url)?, queue.into());
        Ok(Self { broker, queue, open: AsyncMutex::default(), attempts: Arc::default() })
    }

    fn dead(&self) -> String {
        format!("{}.dead", self.queue)
    }

    async fn connect(&self) -> lapin::Result<RabbitConsumer> {
        let connection = self.broker.connect("hapax consumer").await?;
        let dead = connection.create_channel().await?;
        dead.confirm_select(ConfirmSelectOptions::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        dead.queue_declare(self.dead().into(), durable, FieldTable::default()).await?;
        let channel = connection.create_channel().await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let consumer = channel
            .basic_consume(
                self.queue.as_str().into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        Ok(RabbitConsumer { consumer, dead, _connection: connection })
    }

    fn delivery(&self, raw: Raw, dead: &Channel) -> Box<dyn MessageDelivery> {
        let properties = &raw.properties;
        let text =
            |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
        let table = properties.headers().as_ref();
        let mut headers: BTreeMap<_, _> = table
            .into_iter()
            .flat_map(|table| table.inner().iter())
            .filter_map(|(name, value)| Some((name.to_string(), header_text(value)?)))
            .collect();
        let counted = headers.remove("x-delivery-count").and_then(|n| n.parse::<u32>().ok());
        let id = text(properties.message_id()).unwrap_or_default();
        let payload = raw.data.clone().into();
        let mut message = InboundMessage::new(id, raw.routing_key.as_str(), payload, headers);
        message.content_type = text(properties.content_type());
        message.attempt = counted.unwrap_or(0).max(self.tried(&message.id)) + 1;
        Box::new(RabbitDelivery {
            raw,
            message,
            dead: (dead.clone(), self.dead()),
            attempts: self.attempts.clone(),
        })
    }

    fn tried(&self, id: &str) -> u32 {
        let attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        attempts.get(id).copied().unwrap_or(0)
    }
}

#[async_trait]
impl MessageSource for RabbitMqSource {
    fn name(&self) -> &'static str {
        "amqp"
    }

    async fn receive(&self, at_most: usize) -> Result<Deliveries, DeliveryError> {
        let mut open = self.open.lock().await;
        if open.is_none() {
            let connected = match timeout(CONNECT_TIMEOUT, self.connect()).await {
                Ok(Err(error)) if broker_ca::is_untrusted(&error) => Err(UNTRUSTED),
                Ok(Ok(connected)) => Ok(connected),
                _ => Err("the broker cannot be reached, or the queue is not there"),
            };
            *open = Some(connected.map_err(DeliveryError::unreachable)?);
        }
        let Some(RabbitConsumer { consumer, dead, .. }) = open.as_mut() else {
            return Ok(Vec::new());
        };
        let mut deliveries = Vec::new();
        let mut next = match timeout(RECEIVE_WAIT, consumer.next()).await {
            Ok(next) => Some(next),
            Err(_) => return Ok(deliveries),
        };
        while let Some(answer) = next.take() {
            let Some(Ok(raw)) = answer else {
                *open = None;
                // The messages received so far are unacknowledged, so the broker delivers them
                // again.
                return Err(DeliveryError::disconnected("the connection to the broker was lost"));
            };
            deliveries.push(self.delivery(raw, dead));
            if deliveries.len() < at_most {
                next = consumer.next().now_or_never();
            }
        }
        Ok(deliveries)
    }
}

struct RabbitDelivery {
    raw: Raw,
    message: InboundMessage,
    dead: (Channel, String),
    attempts: Arc<Mutex<HashMap<String, u32>>>,
}

fn lost(_: lapin::Error) -> DeliveryError {
    DeliveryError::disconnected("the connection to the broker was lost")
}

impl RabbitDelivery {
    fn count_attempt(&self, attempt: Option<u32>) {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        match attempt {
            Some(attempt) => {
                if attempts.len() >= MAX_COUNTED {
                    attempts.clear();
                }
                attempts.insert(self.message.id.clone(), attempt);
            }
            None => drop(attempts.remove(&self.message.id)),
        }
    }
}

#[async_trait]
impl MessageDelivery for RabbitDelivery {
    fn message(&self) -> &InboundMessage {
        &self.message
    }

    async fn ack(&self) -> Result<(), DeliveryError> {
        self.count_attempt(None);
        self.raw.ack(BasicAckOptions::default()).await.map(|_| ()).map_err(lost)
    }

    async fn retry_after(&self, after: Duration) -> Result<(), DeliveryError> {
        self.count_attempt(Some(self.message.attempt));
        // Wait in a task, so that the consumer may stop meanwhile: a closed connection requeues the
        // message too.
        let acker = self.raw.acker.clone();
        tokio::spawn(async move {
            sleep(after).await;
            let back = BasicNackOptions { requeue: true, multiple: false };
            let _ = acker.nack(back).await;
        });
        Ok(())
    }

    async fn bury(&self, reason: &str) -> Result<(), DeliveryError> {
        let (channel, queue) = &self.dead;
        let mut headers = self.raw.properties.headers().clone().unwrap_or_default();
        headers.insert(REASON.into(), AMQPValue::LongString(LongString::from(reason)));
        let properties = self.raw.properties.clone().with_headers(headers).with_delivery_mode(2);
        let published = channel.basic_publish(
            "".into(),
            queue.as_str().into(),
            BasicPublishOptions::default(),
            &self.raw.data,
            properties,
        );
        match published.await.map_err(lost)?.await.map_err(lost)? {
            Confirmation::Ack(_) => self.ack().await,
            _ => Err(DeliveryError::refused("the queue of the dead letters did not take it")),
        }
    }

    /// Does nothing: the open channel keeps the message reserved.
    async fn keep_alive(&self) -> Result<(), DeliveryError> {
        Ok(())
    }

    fn keep_alive_interval(&self) -> Duration {
        Duration::from_secs(3600)
    }
}

fn header_text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        _ => return None,
    })
}
