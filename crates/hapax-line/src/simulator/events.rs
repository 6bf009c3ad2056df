//! Builds events as LINE sends them.
//!
//! ```
//! use hapax_line::simulator::events;
//! let tap = events::postback("Uf00d1", "action=weather&type=home");
//! let again = events::redelivered(&tap);
//! assert_eq!(tap["webhookEventId"], again["webhookEventId"]);
//! ```

use hapax_core::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::EventKind;

/// A text message.
pub fn text(user: &str, text: &str) -> Value {
    message(user, json!({ "type": "text", "text": text }))
}

/// A location message.
pub fn location(user: &str, title: &str, latitude: f64, longitude: f64) -> Value {
    let place = json!({
        "type": "location",
        "title": title,
        "address": "100 臺北市中正區",
        "latitude": latitude,
        "longitude": longitude,
    });
    message(user, place)
}

/// A sticker.
pub fn sticker(user: &str) -> Value {
    let sticker = json!({
        "type": "sticker",
        "packageId": "11537",
        "stickerId": "52002738",
        "stickerResourceType": "ANIMATION",
    });
    message(user, sticker)
}

/// A tap on an element with data: a rich menu, a button.
pub fn postback(user: &str, data: &str) -> Value {
    answerable("postback", from(user), json!({ "postback": { "data": data } }))
}

/// A user added the bot.
pub fn follow(user: &str) -> Value {
    answerable("follow", from(user), json!({ "follow": { "isUnblocked": false } }))
}

/// A user blocked the bot; the event has no reply token.
pub fn unfollow(user: &str) -> Value {
    event("unfollow", from(user), json!({}))
}

/// An event of a type that does not exist yet.
pub fn unknown(user: &str) -> Value {
    let news = json!({ "somethingNew": { "since": 2027, "parts": [null, { "deep": [1.5e300] }] } });
    answerable("somethingNew", from(user), news)
}

/// One event of each [`EventKind`] that has a name, and one of an unknown kind.
pub fn every_kind(user: &str) -> Vec<Value> {
    EventKind::all().map(|kind| of_kind(user, kind)).collect()
}

/// The same event as a redelivery.
pub fn redelivered(event: &Value) -> Value {
    let mut again = event.clone();
    again["deliveryContext"]["isRedelivery"] = true.into();
    again
}

/// The same event in standby: another module of the channel answers it.
pub fn standby(mut event: Value) -> Value {
    event["mode"] = "standby".into();
    // LINE sends no reply token in standby, as the bot must send nothing.
    remove(&mut event, "replyToken");
    event
}

/// The same event in this group chat.
pub fn in_group(mut event: Value, group: &str) -> Value {
    let user = event["source"]["userId"].take();
    event["source"] = json!({ "type": "group", "groupId": group, "userId": user });
    event
}

/// The same text message with `@name ` before its text, which mentions this user or bot.
pub fn mentioning(mut event: Value, name: &str, user: &str, is_self: bool) -> Value {
    let text = event["message"]["text"].as_str().unwrap_or_default();
    event["message"]["text"] = format!("@{name} {text}").into();
    let length = 1 + name.encode_utf16().count();
    event["message"]["mention"] = json!({ "mentionees": [
        { "index": 0, "length": length, "type": "user", "userId": user, "isSelf": is_self },
    ] });
    event
}

/// The same event in a group, from a user whom LINE does not name.
pub fn without_user(mut event: Value) -> Value {
    let user = event["source"]["userId"].as_str().unwrap_or_default().to_owned();
    event["source"] = group_of(&user);
    remove(&mut event["source"], "userId");
    event
}

fn of_kind(user: &str, kind: EventKind) -> Value {
    let file = json!({ "contentProvider": { "type": "line" } });
    let members = json!({ "members": [from(user)] });
    match kind.as_str() {
        "text" => text(user, "台北"),
        "location" => location(user, "臺北車站", 25.0478, 121.517),
        "sticker" => sticker(user),
        name @ ("image" | "video" | "audio" | "file") => {
            message(user, merged(json!({ "type": name }), file))
        }
        "postback" => postback(user, "action=settings"),
        "follow" => follow(user),
        "unfollow" => unfollow(user),
        "join" => answerable("join", group_of(user), json!({})),
        "memberJoined" => answerable("memberJoined", group_of(user), json!({ "joined": members })),
        "memberLeft" => event("memberLeft", group_of(user), json!({ "left": members })),
        "leave" => event("leave", group_of(user), json!({})),
        "unsend" => event("unsend", from(user), json!({ "unsend": { "messageId": number() } })),
        name @ ("videoPlayComplete" | "beacon" | "accountLink" | "things" | "membership") => {
            answerable(name, from(user), json!({ name: {} }))
        }
        "other" => unknown(user),
        name => event(name, from(user), json!({ name: {} })),
    }
}

fn message(user: &str, what: Value) -> Value {
    let message = merged(json!({ "id": number(), "quoteToken": token() }), what);
    answerable("message", from(user), json!({ "message": message }))
}

/// An event with a reply token.
fn answerable(kind: &str, source: Value, own: Value) -> Value {
    merged(event(kind, source, own), json!({ "replyToken": token() }))
}

fn event(kind: &str, source: Value, own: Value) -> Value {
    let common = json!({
        "type": kind,
        "webhookEventId": ulid(),
        "deliveryContext": { "isRedelivery": false },
        "timestamp": SystemClock.now().0,
        "source": source,
        "mode": "active",
    });
    merged(common, own)
}

fn from(user: &str) -> Value {
    json!({ "type": "user", "userId": user })
}

fn group_of(user: &str) -> Value {
    json!({ "type": "group", "groupId": format!("C{user}"), "userId": user })
}

fn merged(mut all: Value, more: Value) -> Value {
    if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
        all.extend(more);
    }
    all
}

fn remove(object: &mut Value, name: &str) {
    if let Value::Object(members) = object {
        members.shift_remove(name);
    }
}

/// A ULID: 48 bits of time and 80 random bits, in Crockford's alphabet.
fn ulid() -> String {
    const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let bits = u128::from(SystemClock.now().0) << 80 | fastrand::u128(..) >> 48;
    (0..26).rev().map(|nth| ALPHABET[(bits >> (5 * nth) & 31) as usize] as char).collect()
}

fn token() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn number() -> String {
    fastrand::u64(100_000_000_000_000_000..1_000_000_000_000_000_000).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{ChannelSecrets, LineEvent, WebhookBody};

    const USER: &str = "Uf00d0000000000000000000000000001";

    fn read(event: &Value) -> LineEvent {
        LineEvent::parse(&"Uf00db07".into(), &event.to_string()).unwrap()
    }

    #[test]
    fn events_are_read_as_what_they_are() {
        let said = read(&text(USER, "台北 🥚"));
        assert_eq!((said.kind(), said.text()), (EventKind::TEXT, Some("台北 🥚")));
        let place = read(&location(USER, "家 🥚", 25.0478, 121.517));
        assert_eq!(
            (place.kind(), place.location()),
            (EventKind::LOCATION, Some((25.0478, 121.517)))
        );
        let tap = read(&postback(USER, "action=weather&type=home"));
        assert_eq!(tap.postback_field("action").as_deref(), Some("weather"));
        assert_eq!(read(&sticker(USER)).kind().as_str(), "sticker");
        assert_eq!(read(&unknown(USER)).kind(), EventKind::OTHER);
        for event in [said, place, tap, read(&follow(USER))] {
            assert_eq!((event.user_id(), event.chat_id()), (Some(USER), Some(USER)));
            assert!(event.reply_token().is_some() && event.is_one_to_one());
            assert!(!event.is_standby() && !event.is_redelivery());
        }
        assert_eq!(read(&unfollow(USER)).reply_token(), None);
    }

    #[test]
    fn there_is_one_event_of_each_kind() {
        let events = every_kind(USER);
        let kinds: Vec<_> = events.iter().map(|event| read(event).kind()).collect();
        assert_eq!(kinds, EventKind::all().collect::<Vec<_>>());
        for event in &events {
            assert!(read(event).chat_id().is_some(), "{event}");
        }
    }

    #[test]
    fn each_event_is_another_one_until_it_is_redelivered() {
        let events: Vec<_> = (0..100).map(|_| follow(USER)).collect();
        let ids: HashSet<_> = events.iter().map(|event| event["webhookEventId"].as_str()).collect();
        assert_eq!(ids.len(), 100);
        let alphabet = |id: &str| id.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
        assert!(ids.iter().flatten().all(|id| id.len() == 26 && alphabet(id)));
        let tenant = hapax_core::Tenant::default();
        let (first, again) = (read(&events[0]), read(&redelivered(&events[0])));
        assert_eq!(first.id(&tenant), again.id(&tenant));
        assert_eq!(first.reply_token(), again.reply_token());
        assert_eq!((first.is_redelivery(), again.is_redelivery()), (false, true));
    }

    #[test]
    fn variants_change_what_they_say_and_nothing_else() {
        let tap = postback(USER, "action=settings");
        let resting = read(&standby(tap.clone()));
        assert!(resting.is_standby() && resting.reply_token().is_none());
        let nameless = read(&without_user(tap));
        assert_eq!(nameless.user_id(), None);
        assert!(nameless.chat_id().is_some() && nameless.reply_token().is_some());
        assert_eq!(nameless.postback(), Some("action=settings"));
    }

    #[test]
    fn a_signed_webhook_of_them_is_one() {
        let secrets = ChannelSecrets::new("simulated-secret").unwrap();
        let body = json!({ "destination": "Uf00db07", "events": every_kind(USER) }).to_string();
        assert!(secrets.verify(body.as_bytes(), &secrets.sign(body.as_bytes())));
        let webhook = WebhookBody::parse(body.as_bytes()).unwrap();
        assert_eq!((webhook.events.len(), webhook.malformed), (EventKind::all().count(), 0));
    }
}
