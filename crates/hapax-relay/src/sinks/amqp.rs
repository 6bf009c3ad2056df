//! RabbitMQ.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ErrorKind,
    ExchangeKind,
};
use url::Url;

use super::Unusable;
use crate::link::{Lasting, Link};
use crate::{Failure, Message, Sink};

/// The longest text of a short string.
const SHORT: usize = 255;
/// Persistent.
const ON_DISK: u8 = 2;

/// Publishes rows to RabbitMQ: persistent, mandatory, confirmed. The routing key is the topic; the
/// exchange is the default one (which routes to the queue of that name), or `?exchange=NAME` of the
/// URL. The row's id is the `message_id`.
///
/// A message that no queue takes is a failed attempt of that row.
pub struct RabbitMq {
    url: String,
    exchange: ShortString,
    link: Link<Arc<Open>>,
}

/// An open connection. Each message has a channel for itself while it is on its way: what the broker
/// says on a channel is about that message then. (Confirms and returned messages come in no fixed
/// order on a shared one, and a message that closes its channel would take its neighbours with it.)
struct Open {
    connection: Connection,
    idle: Mutex<Vec<Channel>>,
}

impl RabbitMq {
    /// A broker at `amqp://…` or `amqps://…`.
    ///
    /// # Errors
    /// Where the URL is malformed.
    pub fn new(url: &str) -> Result<Self, Unusable> {
        let malformed =
            || Unusable::new("a URL such as amqp://user:password@host:5672/%2f is expected");
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
            return Err(Unusable::new("the name of an exchange has at most 255 bytes"));
        }
        // The driver reads it again; here only to say so early.
        url.parse::<lapin::uri::AMQPUri>().map_err(|_| malformed())?;
        Ok(Self { url: parsed.into(), exchange: exchange.as_str().into(), link: Link::new() })
    }

    async fn open(&self) -> Result<(u64, Arc<Open>), Failure> {
        let (number, open) = self.connected().await?;
        // It would take messages and never confirm them.
        if open.connection.status().blocked() {
            return Err(Failure::unreachable(
                "the broker is short of memory or disk, and takes nothing",
            ));
        }
        Ok((number, open))
    }

    async fn connected(&self) -> Result<(u64, Arc<Open>), Failure> {
        self.link
            .get(|| async {
                let properties =
                    ConnectionProperties::default().with_connection_name("hapax relay".into());
                let connection = Connection::connect(&self.url, properties).await;
                let connection = connection.map_err(|error| unreachable(&error))?;
                let open = Open { connection, idle: Mutex::default() };
                self.examine(&open).await?;
                Ok(Arc::new(open))
            })
            .await
    }

    /// An exchange that is not there would close a channel with every message.
    async fn examine(&self, open: &Open) -> Result<(), Failure> {
        let channel = open.channel().await.map_err(|error| unreachable(&error))?;
        if !self.exchange.as_str().is_empty() {
            let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
            let declared = channel.exchange_declare(
                self.exchange.clone(),
                ExchangeKind::Direct,
                passive,
                FieldTable::default(),
            );
            let missing = |_| Failure::unreachable("the exchange of --to is not there");
            declared.await.map_err(missing)?;
        }
        open.done(channel);
        Ok(())
    }

    async fn publish(&self, channel: &Channel, message: &Message) -> Result<(), Failure> {
        let (topic, properties) = envelope(message)?;
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let payload = &message.item.payload;
        let published =
            channel.basic_publish(self.exchange.clone(), topic, options, payload, properties);
        let confirm = published.await.map_err(|error| failed(&error))?;
        match confirm.await.map_err(|error| failed(&error))? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => {
                Err(Failure::refused("no queue takes it: the message is unroutable"))
            }
            Confirmation::Nack(None) => Err(Failure::refused("the broker did not take it")),
            Confirmation::NotRequested => Err(Failure::refused("the broker does not confirm")),
        }
    }
}

#[async_trait]
impl Sink for RabbitMq {
    fn name(&self) -> &'static str {
        "amqp"
    }

    async fn send(&self, message: &Message) -> Result<(), Failure> {
        let (number, open) = self.open().await?;
        let channel = match open.channel().await {
            Ok(channel) => channel,
            Err(error) => {
                self.link.lose(number).await;
                return Err(unreachable(&error));
            }
        };
        let result = self.publish(&channel, message).await;
        // One that gave no answer, or was closed by it, is not used again.
        match &result {
            Ok(()) => open.done(channel),
            Err(Failure::Refused { .. }) if channel.status().connected() => open.done(channel),
            Err(_) if !open.connection.status().connected() => self.link.lose(number).await,
            Err(_) => {}
        }
        result
    }

    async fn check(&self) -> Result<(), Failure> {
        let (number, open) = self.open().await?;
        match open.channel().await {
            Ok(channel) => {
                open.done(channel);
                Ok(())
            }
            Err(error) => {
                self.link.lose(number).await;
                Err(unreachable(&error))
            }
        }
    }
}

impl Lasting for Arc<Open> {
    fn is_alive(&self) -> bool {
        self.connection.status().connected()
    }
}

impl Open {
    /// A channel that nobody else uses.
    async fn channel(&self) -> lapin::Result<Channel> {
        while let Some(channel) = self.take_idle() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    fn take_idle(&self) -> Option<Channel> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn done(&self, channel: Channel) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
    }
}

fn envelope(message: &Message) -> Result<(ShortString, BasicProperties), Failure> {
    let item = &message.item;
    let content_type = item.content_type.as_deref().unwrap_or("application/octet-stream");
    if item.topic.len() > SHORT || content_type.len() > SHORT {
        let reason = "the topic or the content type has more than 255 bytes";
        return Err(Failure::refused(reason).for_good());
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
fn failed(error: &lapin::Error) -> Failure {
    match error.kind() {
        // The broker closed the channel because of this message.
        ErrorKind::ProtocolError(error) if is_about_the_channel(error) => {
            Failure::refused(format!("the broker refused it ({})", error.get_id()))
        }
        // It was closed before anything was sent over it.
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
            Failure::unreachable("the connection to the broker was lost")
        }
        _ => Failure::cut("the connection to the broker was lost"),
    }
}

fn is_about_the_channel(error: &lapin::protocol::AMQPError) -> bool {
    matches!(error.kind(), lapin::protocol::AMQPErrorKind::Soft(_))
}

fn unreachable(error: &lapin::Error) -> Failure {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Failure::unreachable(format!(
            "the broker refused the connection ({}); are user, password and virtual host right?",
            error.get_id()
        )),
        ErrorKind::IOError(error) => {
            Failure::unreachable(format!("the broker cannot be reached: {}", error.kind()))
        }
        _ => Failure::unreachable("the broker cannot be reached"),
    }
}
