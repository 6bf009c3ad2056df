use std::collections::BTreeMap;

use bytes::Bytes;
use hapax_core::Fence;
use hapax_core::trace::{TRACEPARENT, Traceparent};
use percent_encoding::percent_decode_str;

use crate::{KEY_HEADER, TOPIC_HEADER};

/// A received message.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboundMessage {
    /// The row's id, the same for every delivery of the message.
    pub id: String,
    /// The topic.
    pub topic: String,
    /// The ordering key.
    pub key: Option<String>,
    /// The payload.
    pub payload: Bytes,
    /// The media type of the payload.
    pub content_type: Option<String>,
    /// The headers.
    pub headers: BTreeMap<String, String>,
    /// The number of the attempt, from 1, as far as it is known.
    pub attempt: u32,
    /// The fence, which grows with each claim of the message; `None` without an inbox.
    pub fence: Option<Fence>,
}

impl InboundMessage {
    /// A message as received. `Hapax-Topic`, `Hapax-Key` and `Content-Type` are moved from the
    /// headers to the message's fields.
    ///
    /// ```
    /// # use hapax_relay::consumer::InboundMessage;
    /// let headers = [("hapax-key".to_owned(), "caf%C3%A9".to_owned())].into();
    /// let message = InboundMessage::new("id-1".into(), "orders", "{}".into(), headers);
    /// assert_eq!(message.key.as_deref(), Some("café"));
    /// assert!(message.headers.is_empty());
    /// ```
    pub fn new(id: String, topic: &str, payload: Bytes, headers: BTreeMap<String, String>) -> Self {
        let mut message = Self {
            id,
            topic: topic.into(),
            key: None,
            payload,
            content_type: None,
            headers,
            attempt: 1,
            fence: None,
        };
        if let Some(topic) = message.take(TOPIC_HEADER) {
            message.topic = decoded(&topic);
        }
        message.key = message.take(KEY_HEADER).map(|key| decoded(&key));
        message.content_type = message.take("Content-Type");
        message
    }

    /// The trace that the message belongs to.
    pub(super) fn trace(&self) -> Option<Traceparent> {
        self.headers.get(self.spelling(TRACEPARENT)?).and_then(|text| Traceparent::parse(text))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let written = self.spelling(name)?.to_owned();
        self.headers.remove(&written)
    }

    /// This header's name as the message spells it.
    fn spelling(&self, name: &str) -> Option<&str> {
        self.headers.keys().map(String::as_str).find(|written| written.eq_ignore_ascii_case(name))
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Shows only the id: everything else may identify a person.
impl std::fmt::Debug for InboundMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InboundMessage({}, …)", self.id)
    }
}
