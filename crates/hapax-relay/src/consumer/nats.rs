//! Receives messages from a NATS JetStream stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::Config as StreamConfig;
use async_nats::jetstream::{self, AckKind, Context, Message};
use async_nats::{Client, ConnectOptions, HeaderMap};
use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::timeout;

use super::{Deliveries, InboundMessage, MessageDelivery, MessageSource};
use crate::DeliveryError;
use crate::sinks::EndpointConfigError;
use crate::sinks::nats::NatsServers;

/// How long the server waits for an acknowledgement before it delivers the message again.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// How long one request waits for messages.
const FETCH_WAIT: Duration = Duration::from_secs(1);
/// The longest that an answer may take. The driver has no timeout for a request that does not wait
/// for messages, so it would wait forever after a lost connection.
const FETCH_TIMEOUT: Duration = Duration::from_secs(15);
const REASON: &str = "Hapax-Dead-Reason";

/// A durable pull consumer of a stream. Messages that fail for good go to the subject
/// `hapax.dead.STREAM`, which the stream `STREAM_dead` stores; that stream is created when it is
/// needed.
///
/// A durable consumer that was deleted since is made again at the stream's beginning: what is left in
/// the stream is delivered again, and the inbox recognises it. A stream that was deleted has to be made
/// again by its owner.
pub struct NatsSource {
    servers: NatsServers,
    stream: String,
    durable: String,
    client: OnceCell<Client>,
    /// `None` until the first call, and after an error.
    subscription: Mutex<Option<Arc<NatsSubscription>>>,
}

struct NatsSubscription {
    context: Context,
    consumer: PullConsumer,
    dead: Arc<str>,
}

impl NatsSource {
    /// Consumes this stream, under a durable name that all processes of the consumer share.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn new(url: &str, stream: &str, durable: &str) -> Result<Self, EndpointConfigError> {
        let (stream, durable) = (stream.into(), durable.into());
        let (client, subscription) = (OnceCell::new(), Mutex::default());
        Ok(Self { servers: NatsServers::parse(url)?, stream, durable, client, subscription })
    }

    async fn client(&self) -> Result<&Client, DeliveryError> {
        let options = || ConnectOptions::new().name("hapax consumer");
        self.client.get_or_try_init(|| self.servers.connect(options())).await
    }

    async fn subscription(&self) -> Result<Arc<NatsSubscription>, DeliveryError> {
        let mut subscription = self.subscription.lock().await;
        if let Some(open) = &*subscription {
            return Ok(open.clone());
        }
        Ok(subscription.insert(Arc::new(self.subscribe().await?)).clone())
    }

    async fn subscribe(&self) -> Result<NatsSubscription, DeliveryError> {
        let context = jetstream::new(self.client().await?.clone());
        let stream = context.get_stream(&self.stream).await;
        let stream = stream.map_err(|_| DeliveryError::unreachable("there is no such stream"))?;
        let config = pull::Config {
            durable_name: Some(self.durable.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            ..Default::default()
        };
        let consumer = stream.get_or_create_consumer(&self.durable, config).await;
        let consumer = consumer
            .map_err(|_| DeliveryError::unreachable("the durable consumer cannot be made"))?;
        Ok(NatsSubscription {
            context,
            consumer,
            dead: format!("hapax.dead.{}", self.stream).into(),
        })
    }
}

#[async_trait]
impl MessageSource for NatsSource {
    fn name(&self) -> &'static str {
        "nats"
    }

    async fn receive(&self, at_most: usize) -> Result<Deliveries, DeliveryError> {
        let open = self.subscription().await?;
        let received = self.fetch(&open, at_most).await;
        if received.is_err() {
            // The next call looks for the stream and the durable consumer again: somebody may have deleted
            // them.
            *self.subscription.lock().await = None;
        }
        received
    }
}

impl NatsSource {
    async fn fetch(
        &self,
        open: &NatsSubscription,
        at_most: usize,
    ) -> Result<Deliveries, DeliveryError> {
        let away = || DeliveryError::unreachable("JetStream does not answer");
        let first = open.consumer.fetch().max_messages(at_most).messages();
        let mut first = first.await.map_err(|_| away())?;
        let mut deliveries = Deliveries::new();
        loop {
            match timeout(FETCH_TIMEOUT, first.next()).await {
                Ok(Some(Ok(message))) => {
                    deliveries.push(Box::new(NatsDelivery::new(message, open, &self.stream)));
                }
                Ok(None) => break,
                Ok(Some(Err(_))) | Err(_) if !deliveries.is_empty() => break,
                Ok(Some(Err(_))) => return Err(away()),
                Err(_) => {
                    // A firewall may have dropped the connection silently.
                    let _ = self.client().await?.force_reconnect().await;
                    return Err(away());
                }
            }
        }
        if !deliveries.is_empty() {
            return Ok(deliveries);
        }
        // The stream had no message: wait for one, and leave any others to the next call.
        let waiting = open.consumer.batch().max_messages(1).expires(FETCH_WAIT).messages();
        let mut one = waiting.await.map_err(|_| away())?;
        while let Some(message) = one.next().await {
            let message = message.map_err(|_| away())?;
            deliveries.push(Box::new(NatsDelivery::new(message, open, &self.stream)));
        }
        Ok(deliveries)
    }
}

struct NatsDelivery {
    raw: Message,
    message: InboundMessage,
    context: Context,
    dead: Arc<str>,
    dead_stream: String,
}

impl NatsDelivery {
    fn new(raw: Message, open: &NatsSubscription, stream: &str) -> Self {
        let info = raw.info().ok();
        let headers: BTreeMap<_, _> = raw
            .headers
            .iter()
            .flat_map(HeaderMap::iter)
            .collect::<Vec<_>>()
            .into_iter()
            .filter_map(|(name, values)| Some((name.to_string(), values.first()?.to_string())))
            .collect();
        let mut message =
            InboundMessage::new(String::new(), &raw.subject, raw.payload.clone(), headers);
        // A message that no relay sent is identified by its position in the stream.
        let place = info.as_ref().map(|info| format!("{stream}:{}", info.stream_sequence));
        message.id = message.headers.remove("Nats-Msg-Id").or(place).unwrap_or_default();
        message.attempt = info.map_or(1, |info| u32::try_from(info.delivered).unwrap_or(1).max(1));
        let (context, dead) = (open.context.clone(), open.dead.clone());
        Self { raw, message, context, dead, dead_stream: format!("{stream}_dead") }
    }

    async fn acknowledge(&self, kind: AckKind) -> Result<(), DeliveryError> {
        self.raw
            .ack_with(kind)
            .await
            .map_err(|_| DeliveryError::unreachable("NATS cannot be reached"))
    }
}

#[async_trait]
impl MessageDelivery for NatsDelivery {
    fn message(&self) -> &InboundMessage {
        &self.message
    }

    async fn ack(&self) -> Result<(), DeliveryError> {
        self.acknowledge(AckKind::Ack).await
    }

    async fn retry_after(&self, after: Duration) -> Result<(), DeliveryError> {
        self.acknowledge(AckKind::Nak(Some(after))).await
    }

    async fn bury(&self, reason: &str) -> Result<(), DeliveryError> {
        let failed = |_| DeliveryError::unreachable("the dead letters cannot be written");
        let subjects = vec![self.dead.to_string()];
        let config =
            StreamConfig { name: self.dead_stream.clone(), subjects, ..Default::default() };
        self.context.get_or_create_stream(config).await.map_err(|_| {
            DeliveryError::unreachable("the stream of the dead letters cannot be made")
        })?;
        let mut headers = self.raw.headers.clone().unwrap_or_default();
        headers.insert("Nats-Msg-Id", self.message.id.as_str());
        headers.insert(REASON, reason);
        let payload = self.raw.payload.clone();
        let published = self.context.publish_with_headers(self.dead.to_string(), headers, payload);
        published.await.map_err(failed)?.await.map_err(failed)?;
        self.acknowledge(AckKind::Term).await
    }

    async fn keep_alive(&self) -> Result<(), DeliveryError> {
        self.acknowledge(AckKind::Progress).await
    }

    fn keep_alive_interval(&self) -> Duration {
        ACK_WAIT / 3
    }
}
