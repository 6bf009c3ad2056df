//! Webhooks as a sink.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hapax_core::Queue;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::QueueName;
use hapax_core::{Clock, ManualClock};
use hapax_relay::sinks::{WebhookConfig, WebhookSink};
use hapax_relay::{CloudEvents, DeliveryError, OutboundMessage, RetryHint, Sink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{PATIENCE, Working, brisk, depth, drained, enqueue, item, until};

/// One request as the server received it.
#[derive(Clone, Debug)]
struct Asked {
    line: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// A server that answers as a test says: with the head of a response, or by closing the connection.
struct Server {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

type Answer = Arc<dyn Fn(&Asked) -> Option<&'static str> + Send + Sync>;

impl Server {
    async fn start(
        answer: impl Fn(&Asked) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (log, answer): (_, Answer) = (asked.clone(), Arc::new(answer));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, log.clone(), answer.clone()));
            }
        });
        Self { port, asked }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook?a=b", self.port)
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, log: Arc<Mutex<Vec<Asked>>>, answer: Answer) {
    let mut buffer = Vec::new();
    loop {
        let Some(asked) = read(&mut stream, &mut buffer).await else { return };
        log.lock().unwrap().push(asked.clone());
        let Some(head) = answer(&asked) else { return };
        let text = format!("HTTP/1.1 {head}\r\nContent-Length: 2\r\n\r\nok");
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Asked> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let line = lines.next().unwrap().to_owned();
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |text| text.parse().unwrap());
    while buffer.len() < end + 4 + length {
        stream.read_buf(buffer).await.ok()?;
    }
    let body = buffer[end + 4..end + 4 + length].to_vec();
    buffer.drain(..end + 4 + length);
    Some(Asked { line, headers, body })
}

fn here() -> WebhookConfig {
    WebhookConfig::new().allow_private(true)
}

#[tokio::test]
async fn a_row_is_posted_with_its_id_and_a_signature_that_can_be_verified() {
    let server = Server::start(|_| Some("204 No Content")).await;
    let settings = here().secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let clock = Arc::new(ManualClock::default());
    let sink = WebhookSink::new(&server.url(), &settings).unwrap().clock(clock.clone());
    let row = item("{\"n\":1}")
        .key("a b")
        .content_type("application/json")
        .header("traceparent", "00-1-2-01")
        .header("Host", "evil")
        .header("Webhook-Signature", "forged");
    let cloudevents = Some(CloudEvents::new("/shop"));
    sink.send(&OutboundMessage::new(row.clone()).cloudevents(cloudevents)).await.unwrap();
    let asked = server.asked().pop().unwrap();
    assert_eq!(asked.line, "POST /hook?a=b HTTP/1.1");
    assert_eq!(asked.body, b"{\"n\":1}");
    let get = |name: &str| asked.headers.get(name).map_or("-", String::as_str);
    let id = row.id.to_string();
    assert_eq!((get("idempotency-key"), get("webhook-id")), (&*id, &*id));
    assert_eq!((get("hapax-topic"), get("hapax-key")), ("orders", "a%20b"));
    assert_eq!((get("content-type"), get("ce-type")), ("application/json", "orders"));
    assert_eq!(get("traceparent"), "00-1-2-01");
    assert_eq!(get("host"), format!("127.0.0.1:{}", server.port));
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
    let server = Server::start(|_| Some("200 OK")).await;
    let url = format!("http://localhost:{}/", server.port);
    let sink = WebhookSink::new(&url, &WebhookConfig::default()).unwrap();
    for result in [sink.check().await, sink.send(&OutboundMessage::new(item("1"))).await] {
        let Err(DeliveryError::Unreachable { reason }) = result else { panic!("{result:?}") };
        assert!(reason.contains("--allow-private"), "{reason}");
    }
    assert!(server.asked().is_empty());
    WebhookSink::new(&url, &here()).unwrap().send(&OutboundMessage::new(item("1"))).await.unwrap();
}

#[tokio::test]
async fn answers_are_the_rows_own_and_redirects_are_not_followed() {
    let server = Server::start(|asked| {
        Some(match asked.body.as_slice() {
            b"moved" => "302 Found\r\nLocation: http://127.0.0.1/elsewhere",
            b"bad" => "422 Unprocessable Content",
            b"busy" => "429 Too Many Requests\r\nRetry-After: 7",
            _ => "500 Internal Server Error",
        })
    })
    .await;
    let sink = WebhookSink::new(&server.url(), &here()).unwrap();
    for (payload, expected) in [
        ("moved", RetryHint::Later),
        ("bad", RetryHint::Never),
        ("busy", RetryHint::After(Duration::from_secs(7))),
        ("other", RetryHint::Later),
    ] {
        let failure = sink.send(&OutboundMessage::new(item(payload))).await.unwrap_err();
        let DeliveryError::Refused { retry, reason } = failure else { panic!("{failure:?}") };
        assert_eq!(retry, expected, "{payload}");
        assert!(reason.starts_with("the webhook answered"), "{reason}");
    }
    assert_eq!(server.asked().len(), 4);
}

#[tokio::test]
async fn a_delivery_stays_one_where_the_rest_of_the_answer_does_not_come() {
    let endless = "200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n";
    let server = Server::start(move |_| Some(endless)).await;
    let sink = WebhookSink::new(&server.url(), &here()).unwrap();
    let message = OutboundMessage::new(item("1"));
    let sent = tokio::time::timeout(PATIENCE, sink.send(&message)).await;
    sent.expect("an answer was there").unwrap();
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_row_that_makes_the_webhook_hang_up_harms_no_other() {
    let server = Server::start(|asked| (asked.body != b"poison").then_some("200 OK")).await;
    let store = Arc::new(MemoryStore::default());
    let mut rows: Vec<_> = (0..100).map(|n| item(&n.to_string()).key(&n.to_string())).collect();
    rows.insert(10, item("poison").key("p"));
    enqueue(&*store, &rows).await;
    let sink = Arc::new(WebhookSink::new(&server.url(), &here()).unwrap());
    let relay = Working::start(store.clone(), sink, brisk());
    until("it is dead", async || depth(&*store).await.dead == 1).await;
    drained(&*store).await;
    relay.stop().await;
    let asked = server.asked();
    let poison = asked.iter().filter(|asked| asked.body == b"poison").count();
    assert!((3..=4).contains(&poison), "{poison}");
    assert_eq!(asked.len() - poison, 100, "each neighbour once");
}

#[tokio::test]
async fn a_webhook_that_is_not_there_uses_up_no_attempts() {
    let port = hapax_testkit::free_port();
    let url = format!("http://127.0.0.1:{port}/");
    let store = Arc::new(MemoryStore::default());
    enqueue(&*store, &[item("1"), item("2")]).await;
    let sink = Arc::new(WebhookSink::new(&url, &here()).unwrap());
    let relay = hapax_relay::Relay::with(store.clone(), sink, brisk().max_attempts(1));
    let mut health = relay.health();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(relay.run(async { drop(stopped.await) }));
    let away = |health: &hapax_relay::SinkHealth| matches!(health, hapax_relay::SinkHealth::Down(reason) if reason.contains("refused"));
    health.wait_for(away).await.unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let log = Arc::<Mutex<Vec<Asked>>>::default();
    let accept = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, log.clone(), Arc::new(|_| Some("200 OK"))));
        }
    };
    tokio::select! { () = drained(&*store) => {}, () = accept => {} }
    drop(stop);
    running.await.unwrap();
    assert_eq!(store.dead(&QueueName::outbox(), None, None, 9).await.unwrap(), []);
}
