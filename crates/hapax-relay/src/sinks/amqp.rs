//! RabbitMQ as a sink.

mod confirm_channel;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::tcp::OwnedTLSConfig;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, DefaultConnectionBuilder,
    ErrorKind, ExchangeKind,
};
use url::Url;

use self::confirm_channel::{ConfirmChannel, Publication};
use super::EndpointConfigError;
use crate::broker_ca::{self, UNTRUSTED};
use crate::shared_connection::{LiveConnection, SinkConnection};
use crate::{DeliveryError, OutboundMessage, Sink};

/// The most bytes of an AMQP short string.
const MAX_SHORT: usize = 255;
const LOST: &str = "the connection to the broker was lost";
/// The delivery mode `persistent`.
const PERSISTENT: u8 = 2;

/// Publishes rows to RabbitMQ as persistent and mandatory messages, with publisher confirms. The
/// routing key is the topic. The exchange is `?exchange=NAME` of the URL, or else the default
/// exchange, which routes to the queue of the topic's name. The row's id is the `message_id`.
///
/// A message that no queue accepts counts as a failed attempt of its row.
pub struct RabbitMqSink {
    broker: RabbitAddress,
    exchange: ShortString,
    link: SinkConnection<Arc<RabbitConnection>>,
}

/// The broker runs one process for each channel: enough to use a few of its cores.
const CHANNELS: usize = 4;

/// An open connection.
struct RabbitConnection {
    connection: Connection,
    channels: [tokio::sync::Mutex<Option<ConfirmChannel>>; CHANNELS],
    next: AtomicUsize,
}

impl RabbitMqSink {
    /// A broker at `amqp://…` or `amqps://…`; `?ca=FILE` names the PEM file of a private authority.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn new(url: &str) -> Result<Self, EndpointConfigError> {
        let mut parsed = Url::parse(url).map_err(|_| malformed())?;
        let (own, others): (Vec<_>, Vec<_>) = parsed
            .query_pairs()
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .partition(|(name, _)| name == "exchange");
        parsed.set_query(None);
        if !others.is_empty() {
            parsed.query_pairs_mut().extend_pairs(others);
        }
        let exchange = own.into_iter().next().map(|(_, name)| name).unwrap_or_default();
        if exchange.len() > MAX_SHORT {
            return Err(EndpointConfigError::new("the name of an exchange has at most 255 bytes"));
        }
        Ok(Self {
            broker: RabbitAddress::parse(parsed.as_str())?,
            exchange: exchange.as_str().into(),
            link: SinkConnection::new(),
        })
    }

    async fn open(&self) -> Result<(u64, Arc<RabbitConnection>), DeliveryError> {
        // Boxed: connecting is rare, and its large future would be part of every message's future.
        let (number, open) = self.link.get_or_connect(|| Box::pin(self.connect())).await?;
        open.check_not_blocked()?;
        Ok((number, open))
    }

    async fn connect(&self) -> Result<Arc<RabbitConnection>, DeliveryError> {
        let connection = self.broker.connect("hapax relay").await;
        let connection = connection.map_err(|error| unreachable(&error))?;
        let open =
            RabbitConnection { connection, channels: Default::default(), next: Default::default() };
        self.examine(&open).await?;
        Ok(Arc::new(open))
    }

    /// Checks that the exchange exists: each message to a missing exchange would close a channel.
    async fn examine(&self, open: &RabbitConnection) -> Result<(), DeliveryError> {
        let channel = open.channel().await.map_err(|error| unreachable(&error))?;
        if !self.exchange.as_str().is_empty() {
            let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
            let declared = channel.exchange_declare(
                self.exchange.clone(),
                ExchangeKind::Direct,
                passive,
                FieldTable::default(),
            );
            let missing = |_| DeliveryError::unreachable("the exchange of --to is not there");
            declared.await.map_err(missing)?;
        }
        *open.channels[0].lock().await = Some(ConfirmChannel::new(channel));
        Ok(())
    }

    /// A channel to publish over, with its connection and the connection's number.
    async fn confirm_channel(
        &self,
    ) -> Result<(u64, Arc<RabbitConnection>, ConfirmChannel), DeliveryError> {
        let (number, open) = self.open().await?;
        match open.confirm_channel().await {
            Ok(channel) => Ok((number, open, channel)),
            Err(error) => {
                self.link.discard(number).await;
                Err(unreachable(&error))
            }
        }
    }

    fn publication(&self, message: &OutboundMessage) -> Result<Publication, DeliveryError> {
        let (topic, properties) = message_properties(message)?;
        let (exchange, payload) = (self.exchange.clone(), message.item.payload.clone());
        Ok(Publication { exchange, topic, properties, payload })
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn name(&self) -> &'static str {
        "amqp"
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        let publication = self.publication(message)?;
        let (number, open, channel) = self.confirm_channel().await?;
        let ended = match channel.send(publication.clone()).await {
            Some(Ok(result)) => return result,
            Some(Err(error)) => delivery_error(&error),
            None => DeliveryError::disconnected(LOST),
        };
        let result = match Box::pin(open.channel()).await {
            // This message or another one closed the channel: publish each alone to find out which.
            Ok(channel) => Box::pin(publish_alone(channel, publication)).await,
            Err(_) if matches!(ended, DeliveryError::Unreachable { .. }) => Err(ended),
            Err(_) => Err(DeliveryError::disconnected(LOST)),
        };
        if !open.connection.status().connected() {
            self.link.discard(number).await;
        }
        result
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        // A new connection learns only after its first message that the broker is short of memory
        // or disk, so check the current connection.
        if let Some(open) = self.link.current().await {
            open.check_not_blocked()?;
        }
        self.link.reconnect(|| self.connect()).await.map(drop)
    }
}

impl LiveConnection for Arc<RabbitConnection> {
    fn is_alive(&self) -> bool {
        self.connection.status().connected()
    }
}

impl RabbitConnection {
    /// Fails while the broker blocks publishers: it would accept messages and never confirm them.
    fn check_not_blocked(&self) -> Result<(), DeliveryError> {
        if self.connection.status().blocked() {
            let reason = "the broker is short of memory or disk, and takes nothing";
            return Err(DeliveryError::unreachable(reason));
        }
        Ok(())
    }

    async fn channel(&self) -> lapin::Result<Channel> {
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// The next channel in round-robin order; a closed channel is replaced.
    async fn confirm_channel(&self) -> lapin::Result<ConfirmChannel> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % CHANNELS;
        let mut slot = self.channels[turn].lock().await;
        if let Some(channel) = slot.as_ref().filter(|channel| channel.is_open()) {
            return Ok(channel.clone());
        }
        let channel = ConfirmChannel::new(Box::pin(self.channel()).await?);
        Ok(slot.insert(channel).clone())
    }
}

/// Where a broker is, and whom to trust there.
pub(crate) struct RabbitAddress {
    uri: AMQPUri,
    trust: OwnedTLSConfig,
}

impl RabbitAddress {
    pub(crate) fn parse(url: &str) -> Result<Self, EndpointConfigError> {
        let (url, ca) = broker_ca::take_ca(url)?;
        let uri: AMQPUri = url.parse().map_err(|_| malformed())?;
        if ca.is_some() && uri.scheme != AMQPScheme::AMQPS {
            return Err(broker_ca::ca_without_tls("amqps://"));
        }
        let cert_chain = ca.map(|ca| ca.pem);
        Ok(Self { uri, trust: OwnedTLSConfig { identity: None, cert_chain } })
    }

    pub(crate) async fn connect(&self, name: &str) -> lapin::Result<Connection> {
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let builder = DefaultConnectionBuilder::new()?.with_properties(properties);
        builder.with_uri(self.uri.clone()).with_tls_config(self.trust.clone()).connect().await
    }
}

fn malformed() -> EndpointConfigError {
    EndpointConfigError::new("a URL such as amqp://user:password@host:5672/%2f is expected")
}

/// Publishes over a channel of its own, so that a closed channel is due to this message.
async fn publish_alone(channel: Channel, publication: Publication) -> Result<(), DeliveryError> {
    let answer = ConfirmChannel::new(channel).send(publication).await;
    answer
        .ok_or_else(|| DeliveryError::disconnected(LOST))?
        .map_err(|error| delivery_error(&error))?
}

fn message_properties(
    message: &OutboundMessage,
) -> Result<(ShortString, BasicProperties), DeliveryError> {
    let item = &message.item;
    let content_type = item.content_type.as_deref().unwrap_or("application/octet-stream");
    if item.topic.len() > MAX_SHORT || content_type.len() > MAX_SHORT {
        let reason = "the topic or the content type has more than 255 bytes";
        return Err(DeliveryError::refused(reason).permanent());
    }
    let mut headers = FieldTable::default();
    for (name, value) in message.headers("cloudEvents:")? {
        let value = AMQPValue::LongString(LongString::from(value.as_bytes()));
        headers.insert(ShortString::from(name.as_ref()), value);
    }
    let properties = BasicProperties::default()
        .with_message_id(message.id().into())
        .with_delivery_mode(PERSISTENT)
        .with_content_type(content_type.into())
        .with_headers(headers);
    Ok((ShortString::from(&*item.topic), properties))
}

/// The meaning of a channel's error for the message that was published over the channel.
fn delivery_error(error: &lapin::Error) -> DeliveryError {
    match error.kind() {
        // The broker closed the channel because of this message.
        ErrorKind::ProtocolError(error) if is_channel_error(error) => {
            DeliveryError::refused(format!("the broker refused it ({})", error.get_id()))
        }
        // The channel was closed before the message was sent.
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
            DeliveryError::unreachable(LOST)
        }
        _ => DeliveryError::disconnected(LOST),
    }
}

fn is_channel_error(error: &lapin::protocol::AMQPError) -> bool {
    matches!(error.kind(), lapin::protocol::AMQPErrorKind::Soft(_))
}

pub(crate) fn unreachable(error: &lapin::Error) -> DeliveryError {
    match error.kind() {
        _ if broker_ca::is_untrusted(error) => DeliveryError::unreachable(UNTRUSTED),
        ErrorKind::ProtocolError(error) => DeliveryError::unreachable(format!(
            "the broker refused the connection ({}); are user, password and virtual host right?",
            error.get_id()
        )),
        ErrorKind::IOError(error) => {
            DeliveryError::unreachable(format!("the broker cannot be reached: {}", error.kind()))
        }
        _ => DeliveryError::unreachable("the broker cannot be reached"),
    }
}
