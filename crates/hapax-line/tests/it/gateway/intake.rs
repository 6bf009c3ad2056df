use bytes::Bytes;
use hapax_core::Queue;
use hapax_core::trace::{self, Traceparent};
use hapax_line::simulator::events;
use hapax_line::{LineEvent, WebhookStatus};
use serde_json::json;

use crate::gateway::setup::{RETENTION, Setup, USER, secrets};

#[tokio::test]
async fn intake_copies_of_an_event_are_handled_once() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    let event = events::text(USER, "🥚");
    let copies = (0..20).map(|_| line.tap(std::slice::from_ref(&event)));
    let mut copies: Vec<_> = copies.map(Box::pin).collect();
    for copy in &mut copies {
        assert_eq!(copy.as_mut().await, WebhookStatus::Accepted);
    }
    let first = setup.next().await;
    assert_eq!((first.event.text(), first.attempt), (Some("🥚"), 1));
    first.done();
    setup.settled(0).await;
    // The same event twice in one webhook, marked as LINE's redelivery.
    let again = events::redelivered(&event);
    assert_eq!(line.tap(&[again.clone(), again]).await, WebhookStatus::Accepted);
    // Any effect of those copies would come before this event.
    line.tap(&[events::text("Uf00d2", "🥚 next")]).await;
    assert_eq!(setup.next().await.event.text(), Some("🥚 next"));
}

#[tokio::test]
async fn intake_keeps_the_bytes_of_each_event() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    let odd = r#"{ "type" : "brand-new", "webhookEventId":"01J", "n": 1.00, "x":{"y":[null]} }"#;
    let body = format!(
        r#"{{"destination":"Uf00dbot","events":[17, {odd}, null, {}],"new":1}}"#,
        events::follow(USER)
    );
    assert_eq!(line.receive(body).await, WebhookStatus::Accepted);
    let (one, other) = (setup.next().await, setup.next().await);
    let odd_one = |event: &LineEvent| event.raw() == odd;
    assert!(odd_one(&one.event) || odd_one(&other.event));
    assert!(one.id != other.id);
}

#[tokio::test]
async fn intake_refuses_unsigned_and_malformed_webhooks() {
    let setup = Setup::new().await;
    let line = setup.start();
    let body =
        Bytes::from(json!({"destination": "x", "events": [events::text(USER, "🥚")]}).to_string());
    for signature in [None, Some(""), Some("AAAA"), Some(secrets("secret").sign(b"other").as_str())]
    {
        assert_eq!(line.gateway.receive(signature, &body).await, WebhookStatus::Unsigned);
    }
    let broken = Bytes::from_static(b"{");
    assert_eq!(line.gateway.receive(None, &broken).await, WebhookStatus::Unsigned);
    for body in ["{", "[]", "{}", r#"{"destination":"x","events":{}}"#] {
        assert_eq!(line.receive(body).await, WebhookStatus::Malformed);
    }
    assert_eq!(line.tap(&[]).await, WebhookStatus::Accepted);
    assert_eq!(setup.store.depth(&setup.queue(), None).await.unwrap().waiting, 0);
}

#[tokio::test]
async fn intake_passes_the_trace_of_the_webhook_on() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    let trace = Traceparent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let event = [events::text(USER, "🥚")];
    assert_eq!(trace::within(trace.clone(), line.tap(&event)).await, WebhookStatus::Accepted);
    assert_eq!(setup.next().await.trace, trace);
}

#[tokio::test]
async fn intake_recognises_duplicates_for_the_retention() {
    let mut setup = Setup::new().await;
    let line = setup.start();
    let event = events::text(USER, "🥚");
    line.tap(std::slice::from_ref(&event)).await;
    setup.next().await.done();
    setup.settled(0).await;
    setup.pass(RETENTION / 2);
    line.tap(&[events::redelivered(&event), events::text("Uf00d2", "🥚 next")]).await;
    let next = setup.next().await;
    assert_eq!(next.event.text(), Some("🥚 next"));
    next.done();
    setup.settled(0).await;
    setup.pass(RETENTION);
    line.tap(&[events::redelivered(&event)]).await;
    assert_eq!(setup.next().await.event.text(), Some("🥚"));
}
