use std::borrow::Cow;
use std::sync::Arc;

use hapax_core::queue::QueueItem;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::DeliveryError;

/// Characters that not every protocol allows in a header's value, and `%`, so that the value can be
/// decoded.
const UNSAFE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');
/// The header that carries the topic.
pub const TOPIC_HEADER: &str = "Hapax-Topic";
/// The header that carries the ordering key.
pub const KEY_HEADER: &str = "Hapax-Key";

/// A row of the outbox, as a sink sends it.
#[derive(Clone, Debug)]
pub struct OutboundMessage {
    /// The row of the outbox.
    pub item: QueueItem,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    cloudevents: Option<CloudEvents>,
}

/// Sends rows as CloudEvents 1.0 in binary mode: the attributes are headers, and the payload is
/// unchanged.
///
/// `id` is the row's id, `type` its topic, `subject` its key, `datacontenttype` its content type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudEvents {
    source: Arc<str>,
}

impl CloudEvents {
    /// Events with this `source` attribute, a URI reference that names the sender.
    pub fn new(source: impl Into<Arc<str>>) -> Self {
        Self { source: source.into() }
    }
}

/// The headers of a message, in the order in which they are written.
pub type MessageHeaders<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

impl OutboundMessage {
    /// A row that is sent for the first time.
    pub fn new(item: QueueItem) -> Self {
        Self { item, attempt: 1, cloudevents: None }
    }

    hapax_core::builder_methods! {
        /// Sets the number of the attempt.
        attempt: u32;
        /// Sends the message as a CloudEvent, if `cloudevents` is given.
        cloudevents: Option<CloudEvents>;
    }

    /// The id that is sent with the message, the same for every attempt of the row.
    pub fn id(&self) -> String {
        self.item.id.to_string()
    }

    /// The headers of the message: `Hapax-Topic`, `Hapax-Key`, the row's own headers, and the
    /// attributes of a CloudEvent with this prefix (`ce-` unless the protocol defines another).
    ///
    /// Topic, key and attributes are percent-encoded where they contain blanks, quotes, `%`,
    /// control characters or non-ASCII characters. The row's own headers are sent unchanged.
    ///
    /// # Errors
    /// If one of the row's own headers has an invalid name or value.
    ///
    /// ```
    /// # use hapax_core::{queue::QueueItem, Tenant}; use hapax_relay::OutboundMessage;
    /// let item = QueueItem::new(&Tenant::default(), "orders", "{}").key("café 7").header("traceparent", "00-1");
    /// let message = OutboundMessage::new(item);
    /// let headers = message.headers("ce-").unwrap();
    /// assert_eq!(headers[0], ("Hapax-Topic".into(), "orders".into()));
    /// assert_eq!(headers[1], ("Hapax-Key".into(), "caf%C3%A9%207".into()));
    /// assert_eq!(headers[2], ("traceparent".into(), "00-1".into()));
    /// ```
    pub fn headers(&self, prefix: &str) -> Result<MessageHeaders<'_>, DeliveryError> {
        let mut headers: MessageHeaders<'_> =
            vec![(TOPIC_HEADER.into(), encoded(&self.item.topic))];
        headers.extend(self.item.key.as_deref().map(|key| (KEY_HEADER.into(), encoded(key))));
        let attributes = self.attributes(prefix);
        for (name, value) in &self.item.headers {
            check(name, value)?;
            let ours = headers.iter().chain(&attributes).any(|(n, _)| n.eq_ignore_ascii_case(name));
            // A row cannot override the headers that hapax sets.
            if !ours {
                headers.push((name.into(), value.into()));
            }
        }
        headers.extend(attributes);
        Ok(headers)
    }

    fn attributes(&self, prefix: &str) -> MessageHeaders<'_> {
        let Some(cloudevents) = &self.cloudevents else { return Vec::new() };
        let item = &self.item;
        let named = |name: &str, value| (Cow::from(format!("{prefix}{name}")), value);
        let mut attributes = vec![
            named("specversion", "1.0".into()),
            named("id", self.id().into()),
            named("source", encoded(&cloudevents.source).into_owned().into()),
            named("type", encoded(&item.topic)),
        ];
        attributes.extend(item.key.as_deref().map(|key| named("subject", encoded(key))));
        let trace = item.headers.get("traceparent").filter(|trace| check("t", trace).is_ok());
        attributes.extend(trace.map(|trace| named("traceparent", encoded(trace))));
        attributes
    }
}

/// The text, percent-encoded for a header.
pub(crate) fn encoded(text: &str) -> Cow<'_, str> {
    utf8_percent_encode(text, UNSAFE).into()
}

/// Checks that a name is a token (RFC 9110, 5.6.2) and that a value has no control character but
/// the tab, for every sink alike: a line break would inject another header.
fn check(name: &str, value: &str) -> Result<(), DeliveryError> {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > 255 || !name.bytes().all(token) {
        return Err(DeliveryError::refused("the name of a header cannot travel").permanent());
    }
    if value.bytes().any(|b| b < 0x20 && b != b'\t' || b == 0x7f) {
        return Err(DeliveryError::refused("the value of a header cannot travel").permanent());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::Tenant;

    fn item() -> QueueItem {
        QueueItem::new(&Tenant::default(), "orders", "{}")
    }

    #[test]
    fn row_cannot_override_hapax_headers() {
        let message =
            OutboundMessage::new(item().key("k").header("hapax-key", "another").header("x", "1"));
        let headers = message.headers("ce-").unwrap();
        assert_eq!(headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(KEY_HEADER)).count(), 1);
        assert_eq!(headers[1], (KEY_HEADER.into(), "k".into()));
    }

    #[test]
    fn header_with_a_line_break_is_refused_permanently() {
        for (name, value) in [("x", "1\r\nHost: evil"), ("x y", "1"), ("", "1"), ("x:", "1")] {
            let message = OutboundMessage::new(item().header(name, value));
            let Err(DeliveryError::Refused { retry, reason }) = message.headers("ce-") else {
                panic!()
            };
            assert_eq!(retry, crate::RetryHint::Never);
            assert!(!reason.contains("evil"));
        }
    }

    #[test]
    fn cloudevents_have_their_required_attributes() {
        let cloudevents = Some(CloudEvents::new("/shop"));
        let message = OutboundMessage::new(item().key("a b")).cloudevents(cloudevents);
        let headers = message.headers("ce-").unwrap();
        let get = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_ref());
        assert_eq!(get("ce-specversion"), Some("1.0"));
        assert_eq!(get("ce-id"), Some(message.id().as_str()));
        assert_eq!(get("ce-source"), Some("/shop"));
        assert_eq!(get("ce-type"), Some("orders"));
        assert_eq!(get("ce-subject"), Some("a%20b"));
    }
}
