//! Any bytes as a webhook and as rules: an error, or events that travel on as they came.
#![no_main]

use std::time::Duration;

use hapax_core::Tenant;
use hapax_line::{ChannelSecrets, EventKind, LineEvent, LockRule, LockRules, WebhookBody};
use libfuzzer_sys::fuzz_target;

fn same(event: &LineEvent) {
    let webhook = WebhookBody::parse(event.webhook().as_bytes()).expect("a webhook");
    let [again] = &webhook.events[..] else { panic!("one event is one event") };
    assert_eq!((again.raw(), again.destination()), (event.raw(), event.destination()));
    assert_eq!(again.id(&Tenant::default()), event.id(&Tenant::default()));
    assert_eq!(format!("{again:?}"), format!("{event:?}"));
}

fn ask(event: &LineEvent) {
    assert!(event.json().is_object());
    assert!(event.user_id() != Some("") && event.reply_token() != Some(""));
    let _ = (event.chat_id(), event.is_one_to_one(), event.is_standby(), event.is_redelivery());
    let _ = (event.text(), event.postback(), event.postback_field("action"));
    if let Some((latitude, longitude)) = event.location() {
        assert!(latitude.is_finite() && longitude.is_finite());
    }
}

fn guard(rules: &LockRules, event: &LineEvent) {
    let guarding = rules.rule_for(event);
    if event.kind() == EventKind::FOLLOW || event.kind() == EventKind::UNFOLLOW {
        assert_eq!(guarding, LockRule::None);
    }
    let time = match guarding {
        LockRule::None => return,
        LockRule::Mutex { ttl, .. } => ttl,
        LockRule::Throttle { window } => window,
    };
    assert!((Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&time));
}

fuzz_target!(|bytes: &[u8]| {
    let secrets = ChannelSecrets::new("secret").unwrap();
    assert!(secrets.verify(bytes, &secrets.sign(bytes)));
    let text = String::from_utf8_lossy(bytes);
    assert!(!secrets.verify(bytes, &text));
    // The text after the first ␞ is a rules file.
    let (body, rules) = text.split_once('\u{1e}').unwrap_or((&text, &text));
    let rules = LockRules::parse(rules).unwrap_or_default();
    assert!((1..=5000).contains(&rules.busy_text().encode_utf16().count()));
    let _ = WebhookBody::parse(bytes);
    let Ok(webhook) = WebhookBody::parse(body.as_bytes()) else { return };
    for event in &webhook.events {
        ask(event);
        same(event);
        guard(&rules, event);
    }
});
