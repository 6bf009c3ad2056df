//! Webhooks and their events, parsed tolerantly: LINE adds event types and fields without notice.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use hapax_core::queue::ItemId;
use hapax_core::{Fingerprint, Tenant};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The body is not a webhook.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a JSON object with `destination` (a string) and `events` (an array) is expected")]
pub struct MalformedWebhook;

/// The body of a webhook: any number of events for one bot.
#[derive(Debug)]
pub struct WebhookBody {
    /// The events that could be parsed, in the order of the body.
    pub events: Vec<LineEvent>,
    /// The number of entries in `events` that are not JSON objects.
    pub malformed: usize,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    destination: String,
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

impl WebhookBody {
    /// Parses a body, each event separately.
    ///
    /// ```
    /// use hapax_line::WebhookBody;
    /// let body = br#"{"destination":"U0","events":[{"type":"brand-new"},17,{"type":"follow"}],"x":1}"#;
    /// let webhook = WebhookBody::parse(body)?;
    /// assert_eq!((webhook.events.len(), webhook.malformed), (2, 1));
    /// # Ok::<_, hapax_line::MalformedWebhook>(())
    /// ```
    pub fn parse(body: &[u8]) -> Result<Self, MalformedWebhook> {
        let envelope: Envelope<'_> = serde_json::from_slice(body).map_err(|_| MalformedWebhook)?;
        let destination: Arc<str> = envelope.destination.into();
        let all = envelope.events.len();
        let read = |raw: &RawValue| LineEvent::parse(&destination, raw.get());
        let events: Vec<_> = envelope.events.into_iter().filter_map(read).collect();
        Ok(Self { malformed: all - events.len(), events })
    }
}

/// One event: its original bytes and its parsed JSON. Unknown types and fields are accepted.
#[derive(Clone)]
pub struct LineEvent {
    destination: Arc<str>,
    raw: Arc<str>,
    json: Arc<Value>,
}

impl LineEvent {
    /// Parses an event for the bot `destination`; `None` if the text is not a JSON object.
    pub fn parse(destination: &Arc<str>, raw: &str) -> Option<Self> {
        let json: Value = serde_json::from_str(raw).ok()?;
        let event =
            Self { destination: destination.clone(), raw: raw.into(), json: Arc::new(json) };
        event.json.is_object().then_some(event)
    }

    /// The event's JSON, byte for byte as LINE sent it.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// The event as parsed JSON.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// The bot that the event is for: the webhook's `destination`.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// A webhook body with this event alone, its bytes unchanged.
    pub fn webhook(&self) -> String {
        let destination = Value::from(&*self.destination);
        format!(r#"{{"destination":{destination},"events":[{}]}}"#, self.raw)
    }

    /// The event's id, the same for every delivery: derived from tenant, bot and `webhookEventId`,
    /// or from the event's bytes if it has no `webhookEventId`.
    pub fn id(&self, tenant: &Tenant) -> ItemId {
        match self.text_at("/webhookEventId").filter(|id| !id.is_empty()) {
            Some(id) => ItemId::named(&["line", tenant.as_str(), &self.destination, id]),
            None => {
                let digest = Fingerprint::of(&[self.raw.as_bytes()]);
                let digest = digest.as_str();
                ItemId::named(&["line", tenant.as_str(), &self.destination, "bytes", digest])
            }
        }
    }

    /// The kind of the event.
    pub fn kind(&self) -> EventKind {
        let kind = self.text_at("/type").unwrap_or_default();
        let name = if kind == "message" {
            self.text_at("/message/type").unwrap_or_default()
        } else {
            kind
        };
        EventKind::named(name)
            .filter(|known| known.is_message() == (kind == "message"))
            .unwrap_or_default()
    }

    /// The user who caused the event, if LINE names one.
    pub fn user_id(&self) -> Option<&str> {
        self.text_at("/source/userId").filter(|user| !user.is_empty())
    }

    /// The address for a push: the group or room, or else the user.
    pub fn chat_id(&self) -> Option<&str> {
        let group = self.text_at("/source/groupId").or_else(|| self.text_at("/source/roomId"));
        group.or_else(|| self.user_id())
    }

    /// The chat that the event comes from, as one text: its group, its room, or else its user.
    pub(crate) fn source(&self) -> Option<String> {
        let of = |kind: &str| {
            let id = self.text_at(&format!("/source/{kind}Id")).filter(|id| !id.is_empty())?;
            Some(format!("{kind}:{id}"))
        };
        of("group").or_else(|| of("room")).or_else(|| of("user"))
    }

    /// Whether the chat is between the bot and one user.
    pub fn is_one_to_one(&self) -> bool {
        self.text_at("/source/type") == Some("user")
    }

    /// The token that a reply needs; it works once.
    pub fn reply_token(&self) -> Option<&str> {
        self.text_at("/replyToken").filter(|token| !token.is_empty())
    }

    /// Whether another module of the channel answers this event, so that the bot must send nothing.
    pub fn is_standby(&self) -> bool {
        self.text_at("/mode") == Some("standby")
    }

    /// Whether LINE marks this delivery as a redelivery.
    pub fn is_redelivery(&self) -> bool {
        self.json.pointer("/deliveryContext/isRedelivery") == Some(&Value::Bool(true))
    }

    /// The text of a text message.
    pub fn text(&self) -> Option<&str> {
        self.text_at("/message/text").filter(|_| self.kind() == EventKind::TEXT)
    }

    /// Whether a text message mentions this bot (`@bot`). A mention of everybody in the chat does not.
    pub fn mentions_bot(&self) -> bool {
        self.mentions_of_bot().next().is_some()
    }

    /// The text of a text message that is for the bot: in a one-to-one chat any text; in a group or room
    /// one that mentions the bot, or begins with one of these words. Mentions of the bot, and the word, are
    /// left out.
    ///
    /// ```
    /// # let raw = r#"{"type":"message","source":{"type":"group"},"message":{"type":"text","text":"/weather Taipei"}}"#;
    /// # let event = hapax_line::LineEvent::parse(&"U0".into(), raw).unwrap();
    /// assert_eq!(event.addressed_text(&["/weather"]).as_deref(), Some("Taipei"));
    /// assert_eq!(event.addressed_text(&["/book"]), None);
    /// ```
    pub fn addressed_text(&self, words: &[&str]) -> Option<String> {
        let text = self.text()?;
        if self.is_one_to_one() {
            return Some(text.to_owned());
        }
        if self.mentions_bot() {
            return Some(self.without_mentions_of_bot(text));
        }
        let text = text.trim_start();
        words.iter().find_map(|word| {
            let rest = text.strip_prefix(word)?;
            let is_whole_word = rest.is_empty() || rest.starts_with(char::is_whitespace);
            is_whole_word.then(|| rest.trim().to_owned())
        })
    }

    fn mentions_of_bot(&self) -> impl Iterator<Item = &Value> {
        let mentioned = self.json.pointer("/message/mention/mentionees").and_then(Value::as_array);
        mentioned.into_iter().flatten().filter(|mention| {
            let is_destination = mention["userId"].as_str() == Some(&*self.destination);
            is_destination || mention["isSelf"] == Value::Bool(true)
        })
    }

    /// LINE counts the positions of mentions in UTF-16 units.
    fn without_mentions_of_bot(&self, text: &str) -> String {
        let units: Vec<u16> = text.encode_utf16().collect();
        let mut is_mention = vec![false; units.len()];
        for mention in self.mentions_of_bot() {
            let number = |name: &str| mention[name].as_u64().and_then(|n| usize::try_from(n).ok());
            let (Some(index), Some(length)) = (number("index"), number("length")) else { continue };
            // A range outside of the text is ignored.
            if let Some(range) = is_mention.get_mut(index..index.saturating_add(length)) {
                range.fill(true);
            }
        }
        let rest = units.into_iter().zip(is_mention).filter(|(_, is_mention)| !is_mention);
        let rest: Vec<u16> = rest.map(|(unit, _)| unit).collect();
        String::from_utf16_lossy(&rest).trim().to_owned()
    }

    /// Latitude and longitude of a location message.
    pub fn location(&self) -> Option<(f64, f64)> {
        let number = |name| self.json.pointer(name).and_then(Value::as_f64);
        let place = (number("/message/latitude")?, number("/message/longitude")?);
        (self.kind() == EventKind::LOCATION).then_some(place)
    }

    /// The data of a postback.
    pub fn postback(&self) -> Option<&str> {
        self.text_at("/postback/data").filter(|_| self.kind() == EventKind::POSTBACK)
    }

    /// One field of a postback's data, parsed as a query string (`action=weather&type=home`).
    ///
    /// ```
    /// # let raw = r#"{"type":"postback","postback":{"data":"action=weather&type=home"}}"#;
    /// # let event = hapax_line::LineEvent::parse(&"U0".into(), raw).unwrap();
    /// assert_eq!(event.postback_field("type").as_deref(), Some("home"));
    /// ```
    pub fn postback_field(&self, name: &str) -> Option<String> {
        let mut fields = url::form_urlencoded::parse(self.postback()?.as_bytes());
        fields.find(|(field, _)| field == name).map(|(_, value)| value.into_owned())
    }

    fn text_at(&self, pointer: &str) -> Option<&str> {
        self.json.pointer(pointer).and_then(Value::as_str)
    }
}

/// Shows only the kind: everything else may identify a person.
impl fmt::Debug for LineEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LineEvent({}, …)", self.kind())
    }
}

/// The kind of an event, by the name that rules and metrics use. The kind of a message event is the
/// type of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventKind(&'static str);

const MESSAGES: &[&str] = &["text", "image", "video", "audio", "file", "location", "sticker"];
const OTHERS: &[&str] = &[
    "postback",
    "follow",
    "unfollow",
    "join",
    "leave",
    "memberJoined",
    "memberLeft",
    "unsend",
    "videoPlayComplete",
    "beacon",
    "accountLink",
    "things",
    "membership",
    "module",
    "activated",
    "deactivated",
    "botSuspended",
    "botResumed",
    "delivery",
];

impl EventKind {
    /// A text message.
    pub const TEXT: Self = Self("text");
    /// A location message.
    pub const LOCATION: Self = Self("location");
    /// A tap on an element with data, such as a button.
    pub const POSTBACK: Self = Self("postback");
    /// A user added the bot.
    pub const FOLLOW: Self = Self("follow");
    /// A user blocked the bot.
    pub const UNFOLLOW: Self = Self("unfollow");
    /// A kind that this version does not know.
    pub const OTHER: Self = Self("other");

    /// Every named kind, followed by `OTHER`.
    pub fn all() -> impl Iterator<Item = Self> {
        MESSAGES.iter().chain(OTHERS).map(|name| Self(name)).chain([Self::OTHER])
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.0 == name)
    }

    /// The name of the kind.
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    fn is_message(self) -> bool {
        MESSAGES.contains(&self.0)
    }
}

impl Default for EventKind {
    fn default() -> Self {
        Self::OTHER
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
