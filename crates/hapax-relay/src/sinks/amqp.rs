//! RabbitMQ.

mod pipe;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ErrorKind, ExchangeKind};
use url::Url;

use self::pipe::{Letter, Pipe};
use super::EndpointConfigError;
use crate::shared_connection::{LiveConnection, SharedConnection};
use crate::{DeliveryError, OutboundMessage, Sink};

/// The longest text of a short string.
const SHORT: usize = 255;
const LOST: &str = "the connection to the broker was lost";
/// Persistent.
const ON_DISK: u8 = 2;

/// Publishes rows to RabbitMQ: persistent, mandatory, confirmed. The routing key is the topic; the
/// exchange is the default one (which routes to the queue of that name), or `?exchange=NAME` of the
/// URL. The row's id is the `message_id`.
///
/// A message that no queue takes is a failed attempt of that row.
pub struct RabbitMqSink {
    url: String,
    exchange: ShortString,
    link: SharedConnection<Arc<Open>>,
}

/// Each a process of the broker: enough for a few of its cores.
const PIPES: usize = 4;

/// An open connection.
struct Open {
    connection: Connection,
    pipes: [tokio::sync::Mutex<Option<Pipe>>; PIPES],
    next: AtomicUsize,
}

impl RabbitMqSink {
    /// A broker at `amqp://…` or `amqps://…`.
    ///
    /// # Errors
    /// Where the URL is malformed.
    pub fn new(url: &str) -> Result<Self, EndpointConfigError> {
        let malformed = || {
            EndpointConfigError::new("a URL such as amqp://user:password@host:5672/%2f is expected")
        };
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
        if exchange.len() > SHORT {
            return Err(EndpointConfigError::new("the name of an exchange has at most 255 bytes"));
        }
        // The driver reads it again; here only to say so early.
        url.parse::<lapin::uri::AMQPUri>().map_err(|_| malformed())?;
        Ok(Self {
            url: parsed.into(),
            exchange: exchange.as_str().into(),
            link: SharedConnection::new(),
        })
    }

    async fn open(&self) -> Result<(u64, Arc<Open>), DeliveryError> {
        // In a box: it is large, rare, and would be a part of every message's future.
        let (number, open) = self.link.get(|| Box::pin(self.connect())).await?;
        open.takes_messages()?;
        Ok((number, open))
    }

    async fn connect(&self) -> Result<Arc<Open>, DeliveryError> {
        let properties = ConnectionProperties::default().with_connection_name("hapax relay".into());
        let connection = Connection::connect(&self.url, properties).await;
        let connection = connection.map_err(|error| unreachable(&error))?;
        let open = Open { connection, pipes: Default::default(), next: Default::default() };
        self.examine(&open).await?;
        Ok(Arc::new(open))
    }

    /// An exchange that is not there would close a channel with every message.
    async fn examine(&self, open: &Open) -> Result<(), DeliveryError> {
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
        *open.pipes[0].lock().await = Some(Pipe::new(channel));
        Ok(())
    }

    /// Something to publish over, on the connection of this number.
    async fn pipe(&self) -> Result<(u64, Arc<Open>, Pipe), DeliveryError> {
        let (number, open) = self.open().await?;
        match open.pipe().await {
            Ok(pipe) => Ok((number, open, pipe)),
            Err(error) => {
                self.link.lose(number).await;
                Err(unreachable(&error))
            }
        }
    }

    fn letter(&self, message: &OutboundMessage) -> Result<Letter, DeliveryError> {
        let (topic, properties) = envelope(message)?;
        let (exchange, payload) = (self.exchange.clone(), message.item.payload.clone());
        Ok(Letter { exchange, topic, properties, payload })
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn name(&self) -> &'static str {
        "amqp"
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        let letter = self.letter(message)?;
        let (number, open, pipe) = self.pipe().await?;
        let ended = match pipe.send(letter.clone()).await {
            Some(Ok(result)) => return result,
            Some(Err(error)) => failed(&error),
            None => DeliveryError::disconnected(LOST),
        };
        let result = match Box::pin(open.channel()).await {
            // It, or a neighbour, closed the channel: which of them, shows when each is alone.
            Ok(channel) => Box::pin(alone(channel, letter)).await,
            Err(_) if matches!(ended, DeliveryError::Unreachable { .. }) => Err(ended),
            Err(_) => Err(DeliveryError::disconnected(LOST)),
        };
        if !open.connection.status().connected() {
            self.link.lose(number).await;
        }
        result
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        // A new connection would hear that the broker is short of something after its first message.
        if let Some(open) = self.link.current().await {
            open.takes_messages()?;
        }
        self.link.get_anew(|| self.connect()).await.map(drop)
    }
}

impl LiveConnection for Arc<Open> {
    fn is_alive(&self) -> bool {
        self.connection.status().connected()
    }
}

impl Open {
    /// Otherwise it would take them and never confirm.
    fn takes_messages(&self) -> Result<(), DeliveryError> {
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

    /// The next one in turn; a new one in place of one that ended.
    async fn pipe(&self) -> lapin::Result<Pipe> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % PIPES;
        let mut slot = self.pipes[turn].lock().await;
        if let Some(pipe) = slot.as_ref().filter(|pipe| pipe.is_open()) {
            return Ok(pipe.clone());
        }
        let pipe = Pipe::new(Box::pin(self.channel()).await?);
        Ok(slot.insert(pipe).clone())
    }
}

/// Publishes over a channel for itself: all that happens to the channel is about this message.
async fn alone(channel: Channel, letter: Letter) -> Result<(), DeliveryError> {
    let answer = Pipe::new(channel).send(letter).await;
    answer.ok_or_else(|| DeliveryError::disconnected(LOST))?.map_err(|error| failed(&error))?
}

fn envelope(message: &OutboundMessage) -> Result<(ShortString, BasicProperties), DeliveryError> {
    let item = &message.item;
    let content_type = item.content_type.as_deref().unwrap_or("application/octet-stream");
    if item.topic.len() > SHORT || content_type.len() > SHORT {
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
        .with_delivery_mode(ON_DISK)
        .with_content_type(content_type.into())
        .with_headers(headers);
    Ok((ShortString::from(&*item.topic), properties))
}

/// What an error on a channel means for the message that was on it.
fn failed(error: &lapin::Error) -> DeliveryError {
    match error.kind() {
        // The broker closed the channel because of this message.
        ErrorKind::ProtocolError(error) if is_about_the_channel(error) => {
            DeliveryError::refused(format!("the broker refused it ({})", error.get_id()))
        }
        // It was closed before anything was sent over it.
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
            DeliveryError::unreachable(LOST)
        }
        _ => DeliveryError::disconnected(LOST),
    }
}

fn is_about_the_channel(error: &lapin::protocol::AMQPError) -> bool {
    matches!(error.kind(), lapin::protocol::AMQPErrorKind::Soft(_))
}

fn unreachable(error: &lapin::Error) -> DeliveryError {
    match error.kind() {
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
