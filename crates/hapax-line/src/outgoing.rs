//! What a bot says.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

/// What LINE takes as one text, in UTF-16 units.
pub const MAX_TEXT: usize = 5000;

/// A message that is sent to a chat; LINE takes 1 to 5 of them at once.
///
/// ```
/// use hapax_line::{Action, Message};
/// let message = Message::text("今天想查哪裡的天氣？").quick_reply([
///     Action::postback("住家", "action=weather&type=home"),
///     Action::location("傳送位置"),
/// ]);
/// assert_eq!(message.as_json()["quickReply"]["items"][0]["action"]["label"], "住家");
/// ```
#[derive(Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Message(Value);

impl Message {
    /// A text message.
    pub fn text(text: impl Into<String>) -> Self {
        Self(json!({ "type": "text", "text": text.into() }))
    }

    /// Any message object of LINE's.
    pub fn raw(json: Value) -> Self {
        Self(json)
    }

    /// Adds buttons below the chat.
    #[must_use]
    pub fn quick_reply(mut self, actions: impl IntoIterator<Item = Action>) -> Self {
        let items =
            actions.into_iter().map(|action| json!({ "type": "action", "action": action.0 }));
        self.0["quickReply"] = json!({ "items": items.collect::<Vec<_>>() });
        self
    }

    /// As it is sent.
    pub fn as_json(&self) -> &Value {
        &self.0
    }
}

/// What a tap does.
#[derive(Clone, PartialEq)]
pub struct Action(Value);

impl Action {
    /// Sends a postback event.
    pub fn postback(label: &str, data: &str) -> Self {
        Self(json!({ "type": "postback", "label": label, "data": data }))
    }

    /// Sends a text message.
    pub fn message(label: &str, text: &str) -> Self {
        Self(json!({ "type": "message", "label": label, "text": text }))
    }

    /// Opens the map, to send a location message.
    pub fn location(label: &str) -> Self {
        Self(json!({ "type": "location", "label": label }))
    }
}

/// Shows nothing of what is said: it may identify a person.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Message(…)")
    }
}

/// Shows nothing of what it says: it may identify a person.
impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Action(…)")
    }
}
