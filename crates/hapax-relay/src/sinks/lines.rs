//! JSON Lines as a sink: one line for each row.

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Mutex;

use crate::{DeliveryError, OutboundMessage, Sink};

/// Writes rows as lines of JSON: `id`, `topic`, `key`, `payload` (or `payload_base64` if the
/// payload is not UTF-8), `content_type`, `headers`.
pub struct JsonLinesSink<W>(Mutex<W>);

impl<W: AsyncWrite + Unpin + Send + 'static> JsonLinesSink<W> {
    /// Writes to a writer such as `tokio::io::stdout()`, a file or a socket.
    pub fn new(writer: W) -> Self {
        Self(Mutex::new(writer))
    }
}

#[async_trait]
impl<W: AsyncWrite + Unpin + Send + 'static> Sink for JsonLinesSink<W> {
    fn name(&self) -> &'static str {
        "lines"
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        let line = format!("{}\n", line(message)?);
        let mut writer = self.0.lock().await;
        let written = async {
            writer.write_all(line.as_bytes()).await?;
            writer.flush().await
        };
        written
            .await
            .map_err(|error| DeliveryError::unreachable(format!("cannot write: {}", error.kind())))
    }

    /// Lines are written one at a time, so more messages in flight would only wait.
    fn max_in_flight(&self) -> usize {
        64
    }
}

fn line(message: &OutboundMessage) -> Result<Value, DeliveryError> {
    let item = &message.item;
    let headers: Map<String, Value> = message
        .headers("ce-")?
        .into_iter()
        .map(|(name, value)| (name.into_owned(), Value::from(value.into_owned())))
        .collect();
    let mut line = json!({ "id": message.id(), "topic": &*item.topic, "key": item.key.as_deref() });
    let (name, payload) = match std::str::from_utf8(&item.payload) {
        Ok(text) => ("payload", text.to_owned()),
        Err(_) => ("payload_base64", STANDARD.encode(&item.payload)),
    };
    line[name] = payload.into();
    line["content_type"] = item.content_type.as_deref().into();
    line["headers"] = headers.into();
    Ok(line)
}
