//! The messages of a bot as text for a terminal.

use hapax_line::simulator::{AcceptedCall, ApiEndpoint};
use serde_json::Value;

/// Each message as text; a loading animation has none.
pub(super) fn messages(call: &AcceptedCall) -> Vec<String> {
    call.messages.iter().map(message).collect()
}

/// The name of an endpoint of the API.
pub(super) fn endpoint(call: &AcceptedCall) -> &'static str {
    match call.endpoint {
        ApiEndpoint::Reply => "reply",
        ApiEndpoint::Push => "push",
        ApiEndpoint::Loading => "loading animation",
    }
}

/// The text of a text message, else the type and the alternative text; then the buttons.
fn message(message: &Value) -> String {
    let kind = message["type"].as_str().unwrap_or_default();
    let mut shown = match (kind, message["text"].as_str(), message["altText"].as_str()) {
        ("text", Some(text), _) => text.to_owned(),
        (_, _, Some(instead)) => format!("({kind}) {instead}"),
        _ => format!("({kind})"),
    };
    for item in message["quickReply"]["items"].as_array().into_iter().flatten() {
        let label = item["action"]["label"].as_str().unwrap_or_default();
        shown.push_str(&format!(" [{label}]"));
    }
    printable(&shown)
}

/// Removes control characters, which could move the cursor, and indents further lines.
fn printable(text: &str) -> String {
    let text: String = text.chars().filter(|c| *c == '\n' || !c.is_control()).collect();
    text.replace('\n', "\n      ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_shown_with_buttons_without_escapes() {
        let text = json!({ "type": "text", "text": "晴\u{1b}[31m\n25 °C" });
        assert_eq!(message(&text), "晴[31m\n      25 °C");
        let items = json!({ "items": [{ "action": { "label": "住家" } }, { "action": {} }] });
        let flex = json!({ "type": "flex", "altText": "天氣", "quickReply": items });
        assert_eq!(message(&flex), "(flex) 天氣 [住家] []");
        assert_eq!(message(&json!({ "type": "sticker" })), "(sticker)");
    }
}
