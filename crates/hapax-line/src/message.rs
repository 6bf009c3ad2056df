//! Messages that a bot sends.

use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

/// The longest text of one message, in UTF-16 units.
pub const MAX_TEXT: usize = 5000;

/// A message to a chat; LINE accepts 1 to 5 of them at once.
///
/// ```
/// use hapax_line::{LineMessage, QuickReplyAction};
/// let message = LineMessage::text("今天想查哪裡的天氣？").quick_reply([
///     QuickReplyAction::postback("住家", "action=weather&type=home"),
///     QuickReplyAction::location("傳送位置"),
/// ]);
/// assert_eq!(message.as_json()["quickReply"]["items"][0]["action"]["label"], "住家");
/// ```
#[derive(Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct LineMessage(Value);

impl LineMessage {
    /// A text message.
    pub fn text(text: impl Into<String>) -> Self {
        Self(json!({ "type": "text", "text": text.into() }))
    }

    /// Any message object of LINE's.
    pub fn raw(json: Value) -> Self {
        Self(json)
    }

    /// Adds quick-reply buttons.
    #[must_use]
    pub fn quick_reply(mut self, actions: impl IntoIterator<Item = QuickReplyAction>) -> Self {
        let items =
            actions.into_iter().map(|action| json!({ "type": "action", "action": action.0 }));
        self.0["quickReply"] = json!({ "items": items.collect::<Vec<_>>() });
        self
    }

    /// The JSON that is sent.
    pub fn as_json(&self) -> &Value {
        &self.0
    }
}

/// The action of a quick-reply button.
#[derive(Clone, PartialEq)]
pub struct QuickReplyAction(Value);

impl QuickReplyAction {
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

/// Hides the content: it may identify a person.
impl fmt::Debug for LineMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LineMessage(…)")
    }
}

/// Hides the content: it may identify a person.
impl fmt::Debug for QuickReplyAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuickReplyAction(…)")
    }
}
