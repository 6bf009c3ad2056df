//! Webhooks as a sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax_core::{Clock, ManualClock};
use hapax_relay::sinks::{WebhookConfig, WebhookSink};
use hapax_relay::{
    CloudEvents, DeliveryError, OutboundMessage, Relay, RetryHint, Sink, TargetHealth,
};
use hapax_testkit::{HttpStub, StubAnswer};

use crate::support::{
    WAIT_TIMEOUT, Working, brisk, dead, depth, drained, enqueue, item, numbered, stored, until,
};

/// A response with this status line and headers.
fn respond(head: &str) -> StubAnswer {
    StubAnswer::Respond(format!("HTTP/1.1 {head}\r\nContent-Length: 2\r\n\r\nok"))
}

fn sink(server: &HttpStub) -> WebhookSink {
    WebhookSink::new(&server.url("/hook?a=b"), &here()).unwrap()
}

fn here() -> WebhookConfig {
    WebhookConfig::new().allow_private(true)
}

#[tokio::test]
async fn webhook_carries_the_id_and_a_verifiable_signature() {
    let server = HttpStub::start(|_| respond("204 No Content"));
    let settings = here().secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let clock = Arc::new(ManualClock::default());
    let sink = WebhookSink::new(&server.url("/hook?a=b"), &settings).unwrap();
    let sink = sink.clock(clock.clone());
    let row = item("{\"n\":1}")
        .key("a b")
        .content_type("application/json")
        .header("traceparent", "00-1-2-01")
        .header("Host", "evil")
        .header("Webhook-Signature", "forged");
    let cloudevents = Some(CloudEvents::new("/shop"));
    sink.send(&OutboundMessage::new(row.clone()).cloudevents(cloudevents)).await.unwrap();
    let asked = server.requests().pop().unwrap();
    assert_eq!(asked.line, "POST /hook?a=b HTTP/1.1");
    assert_eq!(asked.body, b"{\"n\":1}");
    let get = |name: &str| asked.headers.get(name).map_or("-", String::as_str);
    let id = row.id.to_string();
    assert_eq!((get("idempotency-key"), get("webhook-id")), (&*id, &*id));
    assert_eq!((get("hapax-topic"), get("hapax-key")), ("orders", "a%20b"));
    assert_eq!((get("content-type"), get("ce-type")), ("application/json", "orders"));
    assert_eq!(get("traceparent"), "00-1-2-01");
    assert_eq!(get("host"), format!("127.0.0.1:{}", server.port()));
    let seconds = clock.now().0 / 1000;
    assert_eq!(get("webhook-timestamp"), seconds.to_string());
    // The signature as a receiver computes it.
    let expected = {
        use base64::Engine;
        use hmac::{Hmac, KeyInit, Mac};
        let base64 = base64::engine::general_purpose::STANDARD;
        let key = base64.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{id}.{seconds}.{{\"n\":1}}").as_bytes());
        format!("v1,{}", base64.encode(mac.finalize().into_bytes()))
    };
    assert_eq!(get("webhook-signature"), expected);
}

#[tokio::test]
async fn private_addresses_are_refused_however_they_are_written() {
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://10.0.0.1/",
        "http://169.254.169.254/latest",
    ] {
        let refused = WebhookSink::new(url, &WebhookConfig::default()).err().map(|e| e.to_string());
        assert!(refused.is_some_and(|text| text.contains("--allow-private")), "{url}");
    }
    // A host name's addresses are checked when the name is looked up.
    let server = HttpStub::start(|_| respond("200 OK"));
    let url = format!("http://localhost:{}/", server.port());
    let sink = WebhookSink::new(&url, &WebhookConfig::default()).unwrap();
    for result in [sink.check().await, sink.send(&OutboundMessage::new(item("1"))).await] {
        let Err(DeliveryError::Unreachable { reason }) = result else { panic!("{result:?}") };
        assert!(reason.contains("--allow-private"), "{reason}");
    }
    assert!(server.requests().is_empty());
    WebhookSink::new(&url, &here()).unwrap().send(&OutboundMessage::new(item("1"))).await.unwrap();
}

#[tokio::test]
async fn webhook_statuses_are_failures_and_no_redirect_is_followed() {
    let server = HttpStub::start(|asked| {
        respond(match asked.body.as_slice() {
            b"moved" => "302 Found\r\nLocation: http://127.0.0.1/elsewhere",
            b"bad" => "422 Unprocessable Content",
            b"busy" => "429 Too Many Requests\r\nRetry-After: 7",
            _ => "500 Internal Server Error",
        })
    });
    let sink = sink(&server);
    for (payload, expected) in [
        ("moved", RetryHint::Later),
        ("bad", RetryHint::Never),
        ("busy", RetryHint::After(Duration::from_secs(7))),
        ("other", RetryHint::Later),
    ] {
        let failure = sink.send(&OutboundMessage::new(item(payload))).await.unwrap_err();
        let (DeliveryError::Refused { retry, reason } | DeliveryError::Rejected { retry, reason }) =
            failure
        else {
            panic!("{failure:?}")
        };
        assert_eq!(retry, expected, "{payload}");
        assert!(reason.starts_with("the webhook answered"), "{reason}");
    }
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn webhook_status_decides_though_the_body_never_ends() {
    let endless = "200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n";
    let server = HttpStub::start(move |_| respond(endless));
    let (sink, message) = (sink(&server), OutboundMessage::new(item("1")));
    let sent = tokio::time::timeout(WAIT_TIMEOUT, sink.send(&message)).await;
    sent.expect("an answer was there").unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn webhook_row_that_is_cut_off_harms_no_other() {
    let server = HttpStub::start(|asked| match &asked.body[..] {
        b"poison" => StubAnswer::RespondAndClose(String::new()),
        _ => respond("200 OK"),
    });
    let store = stored(&[item("poison").key("p")]).await;
    let relay = Working::start(store.clone(), Arc::new(sink(&server)), brisk());
    // A row that is cut off uses up an attempt only if another row was taken since the last one.
    let mut rows = 0;
    until("it is dead", async || {
        enqueue(&*store, &[item(&rows.to_string())]).await;
        rows += 1;
        depth(&*store).await.dead == 1
    })
    .await;
    drained(&*store).await;
    relay.stop().await;
    let asked = server.requests();
    let poison = asked.iter().filter(|asked| asked.body == b"poison").count();
    assert!(poison >= 3, "{poison}");
    assert_eq!(asked.len() - poison, rows, "each neighbour once");
}

#[tokio::test]
async fn webhook_that_is_down_uses_up_no_attempts() {
    let port = hapax_testkit::free_port();
    let url = format!("http://127.0.0.1:{port}/");
    let store = stored(&[item("1"), item("2")]).await;
    let sink = Arc::new(WebhookSink::new(&url, &here()).unwrap());
    let relay = Relay::with(store.clone(), sink, brisk().max_attempts(1));
    let mut health = relay.health();
    let running = Working::run(|stop| relay.run(stop));
    let refused = |health: &TargetHealth| matches!(health, TargetHealth::Down(reason) if reason.contains("refused"));
    health.wait_for(refused).await.unwrap();
    let _server = HttpStub::start_at(port, |_| respond("200 OK"));
    drained(&*store).await;
    running.stop().await;
    assert_eq!(dead(&*store).await, []);
}

/// A load balancer without a healthy server behind it answers 503 to everything.
#[tokio::test]
async fn fault_07_webhook_that_answers_503_to_all_uses_up_no_attempts() {
    let is_away = Arc::new(AtomicBool::new(true));
    let away = is_away.clone();
    let server = HttpStub::start(move |_| match away.load(Ordering::SeqCst) {
        true => respond("503 Service Unavailable"),
        false => respond("200 OK"),
    });
    let store = stored(&numbered(25, 25)).await;
    let relay = Relay::with(store.clone(), Arc::new(sink(&server)), brisk().max_attempts(2));
    let mut health = relay.health();
    let running = Working::run(|stop| relay.run(stop));
    until("many tries, or a dead letter", async || {
        server.requests().len() >= 60 || depth(&*store).await.dead > 0
    })
    .await;
    assert_eq!(dead(&*store).await, []);
    let says_503 = |health: &TargetHealth| matches!(health, TargetHealth::Down(reason) if reason.contains("503"));
    health.wait_for(says_503).await.unwrap();
    is_away.store(false, Ordering::SeqCst);
    drained(&*store).await;
    running.stop().await;
    assert_eq!(dead(&*store).await, []);
    assert_eq!(*health.borrow(), TargetHealth::Up);
}
