//! NATS JetStream.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{Context, PublishError, PublishErrorKind, RequestErrorKind};
use async_nats::jetstream::{self, context::ContextBuilder};
use async_nats::{Client, ConnectOptions, Event, HeaderMap, ServerAddr};
use async_trait::async_trait;
use tokio::sync::{OnceCell, watch};

use super::EndpointConfigError;
use crate::{DeliveryError, OutboundMessage, Sink};

/// Asking the server about streams may take this long.
const ASK: Duration = Duration::from_secs(5);

/// Publishes rows to NATS JetStream: the subject is the topic, the row's id is the `Nats-Msg-Id`, so
/// that the stream itself drops what comes twice within its window. Delivered means that the stream
/// has acknowledged it.
///
/// A stream must cover the subject; where none does, that is the row's failure.
pub struct NatsSink {
    servers: Vec<ServerAddr>,
    open: OnceCell<Open>,
}

struct Open {
    client: Client,
    context: Context,
    /// Changes when the connection is lost: acknowledgements that were on their way never come.
    lost: watch::Receiver<u64>,
}

impl NatsSink {
    /// Servers at `nats://…` or `tls://…`, several with commas between them.
    ///
    /// # Errors
    /// Where the URL is malformed.
    pub fn new(url: &str) -> Result<Self, EndpointConfigError> {
        let servers: Result<Vec<ServerAddr>, _> = url.split(',').map(str::parse).collect();
        let malformed = |_| EndpointConfigError::new("a URL such as nats://host:4222 is expected");
        Ok(Self { servers: servers.map_err(malformed)?, open: OnceCell::new() })
    }

    async fn open(&self) -> Result<&Open, DeliveryError> {
        // In a box: it is large, rare, and would be a part of every message's future.
        self.open.get_or_try_init(|| Box::pin(self.connect())).await
    }

    async fn connect(&self) -> Result<Open, DeliveryError> {
        let (loses, lost) = watch::channel(0);
        let client = ConnectOptions::new()
            .name("hapax relay")
            .event_callback(move |event| {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    loses.send_modify(|n| *n += 1);
                }
                std::future::ready(())
            })
            .connect(&self.servers[..])
            .await
            .map_err(|error| {
                DeliveryError::unreachable(format!("NATS cannot be reached: {}", error.kind()))
            })?;
        // The relay bounds what is on its way, and how long it may take.
        let context = ContextBuilder::new().timeout(ASK).build(client.clone());
        Ok(Open { client, context, lost })
    }

    async fn failed(
        &self,
        open: &Open,
        message: &OutboundMessage,
        error: &PublishError,
    ) -> DeliveryError {
        match error.kind() {
            PublishErrorKind::StreamNotFound => uncovered(open, message).await,
            PublishErrorKind::MaxPayloadExceeded => {
                DeliveryError::refused("it is larger than the server takes").permanent()
            }
            PublishErrorKind::TimedOut => {
                DeliveryError::unanswered("the stream did not acknowledge it")
            }
            PublishErrorKind::BrokenPipe => {
                DeliveryError::disconnected("the connection to NATS was lost")
            }
            _ => DeliveryError::refused(match code(error) {
                Some(code) => format!("the stream did not take it (error {code})"),
                None => "the stream did not take it".into(),
            }),
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
            // To the server these are orders: another id, a roll-up of the stream.
            let order = name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-"));
            if !order {
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
        // The client would keep it for later, when somebody else may have sent it already.
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
                Err(error) => Err(Box::pin(self.failed(open, message, &error)).await),
            },
            _ = lost.changed() => Err(DeliveryError::disconnected("the connection to NATS was lost")),
        }
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        let is_new = !self.open.initialized();
        let open = self.open().await?;
        if open.client.connection_state() != State::Connected {
            return Err(DeliveryError::unreachable("the connection to NATS was lost"));
        }
        // One that was there may be one that a firewall has forgotten: it says nothing, for ever.
        if !is_new {
            let mut lost = open.lost.clone();
            lost.mark_unchanged();
            // Until it has let go of it, a question would go the old way.
            if open.client.force_reconnect().await.is_ok() {
                let _ = lost.changed().await;
            }
        }
        // Older servers leave out what the driver's own question insists on.
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

    /// Acknowledgements are cheap, and one stream acknowledges in order.
    fn max_in_flight(&self) -> usize {
        1024
    }
}

/// Nobody answered: either there is no such stream, or JetStream itself is away.
async fn uncovered(open: &Open, message: &OutboundMessage) -> DeliveryError {
    use jetstream::context::GetStreamByNameErrorKind as Kind;
    match open.context.stream_by_subject(&*message.item.topic).await {
        Err(error) if error.kind() == Kind::NotFound => DeliveryError::refused(
            "no JetStream stream covers the subject; `nats stream add` makes one",
        ),
        Ok(_) => DeliveryError::refused("the stream of the subject did not answer"),
        Err(_) => DeliveryError::unreachable("JetStream does not answer"),
    }
}

/// A subject to publish to: words with dots between them, no wildcards.
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

fn code(error: &PublishError) -> Option<u64> {
    let source = std::error::Error::source(error)?;
    source.downcast_ref::<jetstream::Error>().map(|error| error.error_code().0)
}
