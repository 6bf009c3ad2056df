//! NATS JetStream as a sink.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{Context, PublishError, PublishErrorKind, RequestErrorKind};
use async_nats::jetstream::{self, ErrorCode, context::ContextBuilder};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, ServerAddr};
use async_trait::async_trait;
use tokio::sync::{OnceCell, watch};

use super::EndpointConfigError;
use crate::broker_ca::{self, BrokerCa, UNTRUSTED};
use crate::{DeliveryError, OutboundMessage, Sink};

/// The longest that a JetStream request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Errors of a stream that takes no message at all now: full, or without a leader.
const TAKES_NOTHING: &[ErrorCode] = &[
    ErrorCode::STREAM_STORE_FAILED,
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::CLUSTER_NOT_AVAILABLE,
    ErrorCode::CLUSTER_NOT_LEADER,
    ErrorCode::STREAM_OFFLINE,
];

/// Publishes rows to NATS JetStream. The subject is the topic, and the row's id is the
/// `Nats-Msg-Id`, so that the stream drops duplicates within its window. A row is delivered once
/// the stream has acknowledged it.
///
/// A stream must cover the subject; otherwise the row fails.
pub struct NatsSink {
    servers: NatsServers,
    connection: OnceCell<NatsConnection>,
}

struct NatsConnection {
    client: Client,
    context: Context,
    /// Changes when the connection is lost: outstanding acknowledgements then never arrive.
    lost: watch::Receiver<u64>,
}

impl NatsSink {
    /// Servers at `nats://…` or `tls://…`; several are separated by commas. `?ca=FILE` at the end names the
    /// PEM file of a private authority, and requires TLS.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn new(url: &str) -> Result<Self, EndpointConfigError> {
        Ok(Self { servers: NatsServers::parse(url)?, connection: OnceCell::new() })
    }

    async fn open(&self) -> Result<&NatsConnection, DeliveryError> {
        // Boxed: connecting is rare, and its large future would be part of every message's future.
        self.connection.get_or_try_init(|| Box::pin(self.connect())).await
    }

    async fn connect(&self) -> Result<NatsConnection, DeliveryError> {
        let (loses, lost) = watch::channel(0);
        let options = ConnectOptions::new().name("hapax relay").event_callback(move |event| {
            if matches!(event, Event::Disconnected | Event::Closed) {
                loses.send_modify(|n| *n += 1);
            }
            std::future::ready(())
        });
        let client = self.servers.connect(options).await?;
        // The relay limits the messages in flight and the time of each, so neither is configured
        // here.
        let context = ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(client.clone());
        Ok(NatsConnection { client, context, lost })
    }

    async fn delivery_error(
        &self,
        open: &NatsConnection,
        message: &OutboundMessage,
        error: &PublishError,
    ) -> DeliveryError {
        match error.kind() {
            PublishErrorKind::StreamNotFound => missing_stream(open, message).await,
            PublishErrorKind::MaxPayloadExceeded => {
                DeliveryError::refused("it is larger than the server takes").permanent()
            }
            PublishErrorKind::TimedOut => {
                DeliveryError::unanswered("the stream did not acknowledge it")
            }
            PublishErrorKind::BrokenPipe => {
                DeliveryError::disconnected("the connection to NATS was lost")
            }
            PublishErrorKind::MaxAckPending => {
                DeliveryError::rejected("too many messages wait for the stream's acknowledgement")
            }
            _ => match code(error) {
                Some(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM) => {
                    DeliveryError::refused("it is larger than the stream takes").permanent()
                }
                Some(code) => {
                    let reason = format!("the stream did not take it (error {})", code.0);
                    match TAKES_NOTHING.contains(&code) {
                        true => DeliveryError::rejected(reason),
                        false => DeliveryError::refused(reason),
                    }
                }
                None => DeliveryError::refused("the stream did not take it"),
            },
        }
    }
}

#[async_trait]
impl Sink for NatsSink {
    fn name(&self) -> &'static str {
        "nats"
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        check_subject(&message.item.topic)?;
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers("ce-")? {
            // The server obeys `Nats-*` headers (another id, a roll-up of the stream), so rows
            // cannot set them.
            let is_command = name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
            if !is_command {
                headers.append(&*name, &*value);
            }
        }
        headers.insert(async_nats::header::NATS_MESSAGE_ID, message.id());
        if let Some(content_type) = &message.item.content_type {
            headers.insert("Content-Type", &**content_type);
        }
        let open = self.open().await?;
        let mut lost = open.lost.clone();
        lost.mark_unchanged();
        // A disconnected client would send the message after a reconnect, when another relay may
        // have sent it already.
        if open.client.connection_state() != State::Connected {
            return Err(DeliveryError::unreachable("the connection to NATS was lost"));
        }
        let (topic, payload) = (message.item.topic.to_string(), message.item.payload.clone());
        let published =
            async { open.context.publish_with_headers(topic, headers, payload).await?.await };
        tokio::select! {
            biased;
            result = published => match result {
                Ok(_) => Ok(()),
                Err(error) => Err(Box::pin(self.delivery_error(open, message, &error)).await),
            },
            _ = lost.changed() => Err(DeliveryError::disconnected("the connection to NATS was lost")),
        }
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        let is_new = !self.connection.initialized();
        let open = self.open().await?;
        if open.client.connection_state() != State::Connected {
            return Err(DeliveryError::unreachable("the connection to NATS was lost"));
        }
        // A firewall may have dropped an existing connection, which then never answers.
        if !is_new {
            let mut lost = open.lost.clone();
            lost.mark_unchanged();
            // Wait until the old connection is dropped: a request would still use it.
            if open.client.force_reconnect().await.is_ok() {
                let _ = lost.changed().await;
            }
        }
        // The driver's own request fails on older servers, which omit some fields.
        let asked = open.context.request::<_, _, serde_json::Value>("INFO", &());
        match asked.await {
            Ok(answer) if answer.get("error").is_none() => Ok(()),
            Ok(_) => Err(DeliveryError::unreachable("JetStream is not enabled for this account")),
            Err(error) => Err(DeliveryError::unreachable(match error.kind() {
                RequestErrorKind::NoResponders => {
                    "this NATS server has no JetStream; start it with -js"
                }
                _ => "JetStream does not answer",
            })),
        }
    }

    /// Acknowledgements are cheap, and a stream acknowledges in order.
    fn max_in_flight(&self) -> usize {
        1024
    }
}

/// The addresses of a URL with commas between them, and whom to trust there.
pub(crate) struct NatsServers {
    addresses: Vec<ServerAddr>,
    ca: Option<BrokerCa>,
}

impl NatsServers {
    pub(crate) fn parse(url: &str) -> Result<Self, EndpointConfigError> {
        let malformed = |_| EndpointConfigError::new("a URL such as nats://host:4222 is expected");
        let (url, ca) = broker_ca::take_ca(url)?;
        let addresses = url.split(',').map(str::parse).collect::<Result<_, _>>();
        Ok(Self { addresses: addresses.map_err(malformed)?, ca })
    }

    pub(crate) async fn connect(&self, options: ConnectOptions) -> Result<Client, DeliveryError> {
        let options = match &self.ca {
            Some(ca) => options.require_tls(true).add_root_certificates(ca.path.clone().into()),
            None => options,
        };
        options.connect(&self.addresses).await.map_err(|error| {
            DeliveryError::unreachable(match error.kind() {
                _ if broker_ca::is_untrusted(&error) => UNTRUSTED.to_owned(),
                ConnectErrorKind::Tls => {
                    "NATS cannot be reached: no TLS, or another version of it".to_owned()
                }
                kind => format!("NATS cannot be reached: {kind}"),
            })
        })
    }
}

/// Why no stream answered: none covers the subject, or JetStream is down.
async fn missing_stream(open: &NatsConnection, message: &OutboundMessage) -> DeliveryError {
    use jetstream::context::GetStreamByNameErrorKind as Kind;
    match open.context.stream_by_subject(&*message.item.topic).await {
        Err(error) if error.kind() == Kind::NotFound => DeliveryError::refused(
            "no JetStream stream covers the subject; `nats stream add` makes one",
        ),
        Ok(_) => DeliveryError::rejected("the stream of the subject did not answer"),
        Err(_) => DeliveryError::unreachable("JetStream does not answer"),
    }
}

/// Checks that a topic is a subject to publish to: words separated by dots, without wildcards.
fn check_subject(topic: &str) -> Result<(), DeliveryError> {
    let word = |word: &str| {
        !word.is_empty()
            && !word.contains(|c: char| c.is_whitespace() || c.is_control() || c == '*' || c == '>')
    };
    if topic.split('.').all(word) {
        return Ok(());
    }
    Err(DeliveryError::refused("the topic is no NATS subject").permanent())
}

fn code(error: &PublishError) -> Option<ErrorCode> {
    let source = std::error::Error::source(error)?;
    source.downcast_ref::<jetstream::Error>().map(jetstream::Error::error_code)
}
