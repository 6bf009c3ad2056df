use serde_json::json;

use super::*;

fn webhook(events: &str) -> WebhookBody {
    let body = format!(r#"{{"destination":"Uf00db07","events":{events}}}"#);
    WebhookBody::parse(body.as_bytes()).unwrap()
}

fn event(raw: &str) -> LineEvent {
    LineEvent::parse(&"Uf00db07".into(), raw).unwrap()
}

fn deep(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// Calls every accessor; none may panic.
fn ask_all(event: &LineEvent) {
    let _ = (event.kind(), event.user_id(), event.chat_id(), event.reply_token());
    let _ = (event.is_one_to_one(), event.is_standby(), event.is_redelivery());
    let _ = (event.text(), event.location(), event.postback(), event.postback_field("action"));
    let _ = (event.id(&Tenant::default()), event.json(), format!("{event:?}"));
}

#[test]
fn webhook_of_wrong_form_is_malformed() {
    for body in [
        "",
        "🥚",
        "null",
        "[]",
        "17",
        "{}",
        r#"{"events":[]}"#,
        r#"{"destination":"Uf00db07"}"#,
        r#"{"destination":"Uf00db07","events":null}"#,
        r#"{"destination":"Uf00db07","events":{}}"#,
        r#"{"destination":7,"events":[]}"#,
        r#"{"destination":"Uf00db07","events":[],"events":[]}"#,
        r#"{"destination":"Uf00db07","events":[}"#,
        r#"{"destination":"Uf00db07","events":[]}x"#,
        r#"{"destination":"\ud83e","events":[]}"#,
    ] {
        assert_eq!(WebhookBody::parse(body.as_bytes()).err(), Some(MalformedWebhook), "{body}");
    }
    let not_utf8 = b"{\"destination\":\"\xff\",\"events\":[]}";
    assert_eq!(WebhookBody::parse(not_utf8).err(), Some(MalformedWebhook));
}

#[test]
fn a_webhook_may_have_no_events_and_more_fields() {
    assert!(webhook("[]").events.is_empty());
    let body = r#" {"new":{"x":[1]},"events":[ {"type":"follow"} ],"destination":"Uf00db07"} "#;
    let read = WebhookBody::parse(body.as_bytes()).unwrap();
    assert_eq!((read.events.len(), read.malformed), (1, 0));
}

#[test]
fn one_bad_event_never_drops_its_neighbours() {
    let too_deep = format!(r#"{{"type":"text","x":{}}}"#, deep(10_000));
    for bad in ["17", "null", "\"follow\"", "[{}]", r#"{"x":"\ud83e"}"#, &too_deep] {
        let read = webhook(&format!(r#"[{{"type":"follow"}},{bad},{{"type":"unfollow"}}]"#));
        let kinds: Vec<_> = read.events.iter().map(LineEvent::kind).collect();
        assert_eq!(
            kinds,
            [EventKind::FOLLOW, EventKind::UNFOLLOW],
            "{}",
            &bad[..bad.len().min(40)]
        );
        assert_eq!(read.malformed, 1);
    }
}

#[test]
fn events_of_unknown_type_and_form_pass() {
    let wrong = json!([[], {}, null, 1, true, "x"]);
    for raw in [
        "{}".to_owned(),
        r#"{"type":"brandNew","brandNew":{"x":1}}"#.into(),
        r#"{"type":"message"}"#.into(),
        r#"{"type":"message","message":{"type":"hologram"}}"#.into(),
        r#"{"type":"message","message":{"type":"follow"}}"#.into(),
        r#"{"type":"text","message":{"type":"text","text":"🥚"}}"#.into(),
        r#"{"type":17,"source":[],"mode":{},"replyToken":5,"webhookEventId":[]}"#.into(),
        json!({ "type": wrong, "message": wrong, "postback": wrong, "source": wrong }).to_string(),
        format!(r#"{{"type":"text","x":{}}}"#, deep(100)),
        r#"{"type":"x","timestamp":1e999999,"big":123456789012345678901234567890}"#.into(),
    ] {
        let read = webhook(&format!("[{raw}]"));
        assert_eq!((read.events.len(), read.malformed), (1, 0), "{raw}");
        let event = &read.events[0];
        assert_eq!(event.kind(), EventKind::OTHER, "{raw}");
        assert_eq!((event.user_id(), event.chat_id(), event.reply_token()), (None, None, None));
        assert_eq!((event.text(), event.location(), event.postback()), (None, None, None));
        ask_all(event);
    }
}

#[test]
fn wrong_types_in_known_events_are_nothing() {
    for raw in [
        r#"{"type":"message","message":{"type":"text","text":5}}"#,
        r#"{"type":"message","message":{"type":"location","latitude":"25","longitude":121}}"#,
        r#"{"type":"message","message":{"type":"location","latitude":1e999,"longitude":121}}"#,
        r#"{"type":"message","message":{"type":"location","latitude":25}}"#,
        r#"{"type":"postback","postback":{"data":{}}}"#,
        r#"{"type":"postback","postback":"action=weather"}"#,
        r#"{"type":"follow","deliveryContext":{"isRedelivery":"true"},"mode":["standby"]}"#,
    ] {
        let event = event(raw);
        assert_ne!(event.kind(), EventKind::OTHER, "{raw}");
        assert_eq!((event.text(), event.location(), event.postback()), (None, None, None), "{raw}");
        assert!(!event.is_redelivery() && !event.is_standby(), "{raw}");
        ask_all(&event);
    }
}

#[test]
fn event_kind_is_named_by_the_event_or_message_type() {
    for kind in EventKind::all() {
        let name = kind.as_str();
        assert_eq!(EventKind::named(name), Some(kind));
        let raw = if kind.is_message() {
            json!({ "type": "message", "message": { "type": name } })
        } else {
            json!({ "type": name, "message": { "type": "text" } })
        };
        assert_eq!(event(&raw.to_string()).kind(), kind);
    }
    assert_eq!(EventKind::named("Text"), None);
    assert_eq!(EventKind::named(""), None);
}

#[test]
fn chats_are_addressed_by_their_own_id() {
    for (source, user, chat, one_to_one) in [
        (json!({ "type": "user", "userId": "Uf00d1" }), Some("Uf00d1"), Some("Uf00d1"), true),
        (
            json!({ "type": "group", "groupId": "Cf00d", "userId": "Uf00d1" }),
            Some("Uf00d1"),
            Some("Cf00d"),
            false,
        ),
        (json!({ "type": "room", "roomId": "Rf00d" }), None, Some("Rf00d"), false),
        (json!({ "type": "user", "userId": "" }), None, None, true),
        (json!({ "type": "user" }), None, None, true),
        (json!({}), None, None, false),
        (json!(null), None, None, false),
    ] {
        let event = event(&json!({ "type": "follow", "source": source }).to_string());
        assert_eq!((event.user_id(), event.chat_id()), (user, chat), "{source}");
        assert_eq!(event.is_one_to_one(), one_to_one, "{source}");
    }
}

#[test]
fn text_is_read_however_it_is_written() {
    for (written, text) in [
        ("台北 🥚", "台北 🥚"),
        (r"\u53f0\u5317 \ud83e\udd5a", "台北 🥚"),
        (r#"\"\\\n\u0000"#, "\"\\\n\0"),
        ("", ""),
    ] {
        let raw = format!(r#"{{"type":"message","message":{{"type":"text","text":"{written}"}}}}"#);
        assert_eq!(event(&raw).text(), Some(text));
    }
}

#[test]
fn of_doubled_keys_the_last_one_counts() {
    let twice = event(r#"{"type":"follow","type":"unfollow","mode":"standby","mode":"active"}"#);
    assert_eq!(twice.kind(), EventKind::UNFOLLOW);
    assert!(!twice.is_standby());
}

#[test]
fn fields_of_a_postback_are_those_of_a_query() {
    for (data, action) in [
        ("action=weather&type=home", Some("weather")),
        ("type=home&action=weather", Some("weather")),
        ("action=%E5%A4%A9%F0%9F%A5%9A+1", Some("天🥚 1")),
        ("action=weather&action=settings", Some("weather")),
        ("action=", Some("")),
        ("action", Some("")),
        ("Action=weather", None),
        ("%zz&&==&action=%ff", Some("\u{fffd}")),
        ("", None),
    ] {
        let raw = json!({ "type": "postback", "postback": { "data": data } }).to_string();
        assert_eq!(event(&raw).postback_field("action").as_deref(), action, "{data}");
    }
}

#[test]
fn an_event_travels_on_with_its_own_bytes() {
    let raw = "{ \"type\":\"follow\",\n\t\"n\": 1.0e+2, \"big\":0.10000000000000000000000001, \
               \"esc\":\"\\u53f0\\/\", \"n\":1 , \"new\":{ } }";
    let read = webhook(&format!("[ {raw} ]"));
    let only = read.events[0].webhook();
    assert_eq!(only, format!(r#"{{"destination":"Uf00db07","events":[{raw}]}}"#));
    let again = WebhookBody::parse(only.as_bytes()).unwrap();
    assert_eq!(again.events[0].raw(), raw);
    let odd = LineEvent::parse(&"U\"\\\n🥚".into(), "{}").unwrap();
    let again = WebhookBody::parse(odd.webhook().as_bytes()).unwrap();
    assert_eq!(again.events[0].destination(), "U\"\\\n🥚");
}

#[test]
fn an_event_is_known_by_bot_and_id_or_by_its_bytes() {
    let tenant = Tenant::default();
    let id = |destination: &str, raw: &str| {
        LineEvent::parse(&destination.into(), raw).unwrap().id(&tenant)
    };
    let first = r#"{"webhookEventId":"01F","deliveryContext":{"isRedelivery":false}}"#;
    let again = r#"{"webhookEventId":"01F","deliveryContext":{"isRedelivery":true},"new":1}"#;
    assert_eq!(id("Uf00db07", first), id("Uf00db07", again));
    assert_ne!(id("Uf00db07", first), id("Uf00db08", first));
    assert_ne!(id("Uf00db07", first), id("Uf00db07", r#"{"webhookEventId":"01G"}"#));
    // Without a usable `webhookEventId`, an event is identified by its bytes.
    for none in ["", r#""webhookEventId":"","#, r#""webhookEventId":5,"#] {
        let (one, two) = (format!(r#"{{{none}"n":1}}"#), format!(r#"{{{none}"n":2}}"#));
        assert_eq!(id("Uf00db07", &one), id("Uf00db07", &one));
        assert_ne!(id("Uf00db07", &one), id("Uf00db07", &two), "{none}");
    }
}

#[test]
fn event_debug_output_hides_personal_data() {
    let raw = r#"{"type":"message","message":{"type":"text","text":"🥚"},"replyToken":"f00d",
                  "source":{"type":"user","userId":"Uf00d1"}}"#;
    assert_eq!(format!("{:?}", event(raw)), "LineEvent(text, …)");
    assert_eq!(
        format!("{:?}", webhook(&format!("[{raw}]"))),
        "WebhookBody { events: [LineEvent(text, …)], malformed: 0 }"
    );
}

#[test]
fn fault_23_mention_is_cut_out_by_utf16_positions() {
    let event = |text: &str, mention: &str| {
        let raw = format!(
            r#"{{"type":"message","source":{{"type":"group","groupId":"C1"}},"message":{{"type":"text","text":"{text}","mention":{{"mentionees":[{mention}]}}}}}}"#
        );
        LineEvent::parse(&"U0".into(), &raw).unwrap()
    };
    let addressed = |text: &str, mention: &str| event(text, mention).addressed_text(&["天氣"]);
    // The emoji before the mention is one character and two UTF-16 units.
    let own = r#"{"index":3,"length":4,"type":"user","userId":"U0"}"#;
    assert_eq!(addressed("🥚 @bot 台北", own).as_deref(), Some("🥚  台北"));
    let is_self = r#"{"index":0,"length":4,"type":"user","isSelf":true}"#;
    assert_eq!(addressed("@bot", is_self).as_deref(), Some(""));
    for (index, length) in [("0", "99"), ("18446744073709551615", "1"), ("-1", "2"), ("null", "1")]
    {
        let outside = format!(r#"{{"index":{index},"length":{length},"userId":"U0"}}"#);
        assert_eq!(addressed("@bot 台北", &outside).as_deref(), Some("@bot 台北"));
    }
    let other = r#"{"index":0,"length":4,"type":"user","userId":"U1","isSelf":false}"#;
    let all = r#"{"index":0,"length":4,"type":"all"}"#;
    assert_eq!(addressed("@bot 台北", other), None);
    assert_eq!(addressed("@All 台北", all), None);
    assert_eq!(addressed("天氣 台北", other).as_deref(), Some("台北"));
    assert_eq!(addressed("天氣預報", other), None);
}
