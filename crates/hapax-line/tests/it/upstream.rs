//! A bot behind a URL: the requests that it gets, and the meaning of its answers. A real gateway
//! delivers the events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::QueueDepth;
use hapax_core::trace::{self, Traceparent};
use hapax_core::{Queue, Store};
use hapax_line::simulator::events;
use hapax_line::{
    Backoff, ChannelSecrets, EventContext, EventHandlerError, Gateway, GatewayConfig, LineClient,
    LineEvent, LineEventHandler, UpstreamHandler, WebhookStatus,
};
use hapax_redis::{RedisConfig, RedisStore};
use hapax_testkit::{HttpStub, StubAnswer};
use tokio::sync::mpsc;

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
const USER: &str = "Uf00d0000000000000000000000000001";
const NO_CONTENT: &str = "HTTP/1.1 204 No Content\r\n\r\n";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn secrets() -> ChannelSecrets {
    ChannelSecrets::new("new,old").unwrap()
}

/// A bot that answers each request with this text.
fn bot(answer: impl Into<String>) -> HttpStub {
    let answer = answer.into();
    HttpStub::start(move |_| StubAnswer::RespondAndClose(answer.clone()))
}

fn upstream(bot: &HttpStub) -> UpstreamHandler {
    UpstreamHandler::new(&bot.url("/callback?bot=1"), secrets()).unwrap()
}

/// Reports the upstream's result to the test, and always succeeds, so that no event is retried.
struct ReportingHandler {
    upstream: UpstreamHandler,
    reports: mpsc::UnboundedSender<Report>,
    trace: Option<Traceparent>,
}

struct Report {
    id: String,
    attempt: u32,
    fence: Option<u64>,
    result: Result<(), EventHandlerError>,
}

#[async_trait]
impl LineEventHandler for ReportingHandler {
    async fn handle(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        let handled = self.upstream.handle(event, context);
        let result = trace::within(self.trace.clone(), handled).await;
        let (id, attempt) = (context.id().to_string(), context.attempt());
        let fence = context.fence().map(|fence| fence.0);
        let _ = self.reports.send(Report { id, attempt, fence, result });
        Ok(())
    }
}

/// Sends one webhook to the upstream through a gateway.
async fn deliver(upstream: UpstreamHandler, body: &str, trace: Option<&str>) -> Report {
    // A stalled machine must not look like a store that does not answer.
    let settings = GatewayConfig::new().store_timeout(WAIT_TIMEOUT);
    deliver_with(Arc::new(MemoryStore::default()), settings, upstream, body, trace).await
}

async fn deliver_with(
    store: Arc<dyn Store>,
    settings: GatewayConfig,
    upstream: UpstreamHandler,
    body: &str,
    trace: Option<&str>,
) -> Report {
    let (reports, mut reported) = mpsc::unbounded_channel();
    let trace = trace.and_then(Traceparent::parse);
    let handler = Arc::new(ReportingHandler { upstream, reports, trace });
    // No reply is sent, so no server listens there.
    let client = LineClient::new("http://127.0.0.1:9", "token").unwrap();
    let gateway = Gateway::new(store, secrets(), client, handler, settings);
    let body = Bytes::from(body.to_owned());
    let answer = gateway.receive(Some(&secrets().sign(&body)), &body).await;
    assert_eq!(answer, WebhookStatus::Accepted);
    tokio::select! {
        report = tokio::time::timeout(WAIT_TIMEOUT, reported.recv()) => report.unwrap().unwrap(),
        () = gateway.run(std::future::pending()) => unreachable!("it runs for ever"),
    }
}

async fn result(upstream: UpstreamHandler) -> Result<(), EventHandlerError> {
    let event = events::text(USER, "🥚");
    deliver(upstream, &webhook(&event.to_string()), None).await.result
}

fn webhook(event: &str) -> String {
    format!(r#"{{"destination":"Uf00dbot","events":[{event}]}}"#)
}

/// The result of an event whose bot answers with this text.
async fn after(answer: &str) -> Result<(), EventHandlerError> {
    result(upstream(&bot(answer))).await
}

#[tokio::test]
async fn the_bot_gets_the_events_own_bytes_signed_and_numbered() {
    let bot = bot("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let id = "01HZZZZZZZZZZZZZZZZZZZZZZZ";
    // The order of the fields, the spaces and the escapes must reach the bot unchanged.
    let event = format!(
        r#"{{ "webhookEventId":"{id}", "type" : "brand-new", "source":{{"userId":"{USER}"}}, "n":1.0, "x":"\u0041" }}"#
    );
    let body = webhook(&event);
    let two = body.replace(r#""events":["#, r#""more":true,"events":[17,"#);
    let report = deliver(upstream(&bot), &two, Some(TRACE)).await;
    assert_eq!(report.result, Ok(()));
    let seen = bot.requests().remove(0);
    assert_eq!(seen.line, "POST /callback?bot=1 HTTP/1.1");
    assert_eq!(String::from_utf8(seen.body.clone()).unwrap(), body);
    let header = |name: &str| seen.headers.get(name).map(String::as_str);
    assert_eq!(header("content-type"), Some("application/json"));
    assert_eq!(header("idempotency-key"), Some(report.id.as_str()));
    assert_eq!(header("hapax-attempt"), Some(report.attempt.to_string().as_str()));
    assert_eq!(report.attempt, 1);
    assert_eq!(header("hapax-fence"), report.fence.map(|fence| fence.to_string()).as_deref());
    assert!(report.fence.is_some(), "the store is there");
    assert_eq!(header("traceparent"), Some(TRACE));
    let signature = header("x-line-signature").unwrap();
    let first = ChannelSecrets::new("new").unwrap();
    assert!(first.verify(&seen.body, signature), "the first secret signs");
}

#[tokio::test]
async fn upstream_gets_no_trace_header_without_a_trace() {
    let bot = bot(NO_CONTENT);
    result(upstream(&bot)).await.unwrap();
    assert!(!bot.requests()[0].headers.contains_key("traceparent"));
}

#[tokio::test]
async fn upstream_gets_no_fence_while_the_store_is_down() {
    let nobody = format!("redis://127.0.0.1:{}", hapax_testkit::free_port());
    let store = RedisStore::open(RedisConfig::new(&nobody).unwrap()).unwrap();
    let bot = bot(NO_CONTENT);
    let body = webhook(&events::text(USER, "🥚").to_string());
    let (store, config) = (Arc::new(store), GatewayConfig::default());
    let report = deliver_with(store, config, upstream(&bot), &body, None).await;
    assert_eq!((report.result, report.fence), (Ok(()), None));
    let seen = bot.requests().remove(0);
    assert!(!seen.headers.contains_key("hapax-fence"));
    assert_eq!(seen.headers["idempotency-key"], report.id);
}

#[tokio::test]
async fn a_status_decides_what_follows() {
    let ok = ["200 OK", "204 No Content", "299 Fine"];
    let again = ["301 Moved", "400 Bad", "401 No", "404 None", "409 No", "500 Oh", "501 No"];
    let rejected = ["408 Slow", "425 Early", "429 Slow", "503 Later"];
    let unknown = ["502 Bad Gateway", "504 Gateway Timeout"];
    for status in ok.iter().chain(&again).chain(&rejected).chain(&unknown) {
        // Every answer has a `Location`, which the gateway must not follow.
        let text =
            format!("HTTP/1.1 {status}\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n");
        let number = &status[..3];
        let reason = format!("the bot answered {number}");
        let expected = match status {
            _ if ok.contains(status) => Ok(()),
            _ if unknown.contains(status) => Err(EventHandlerError::unknown(reason)),
            _ if rejected.contains(status) => Err(EventHandlerError::rejected(reason)),
            _ => Err(EventHandlerError::retry(reason)),
        };
        assert_eq!(after(&text).await, expected, "{status}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let moved = "HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n";
    let bot = bot(moved);
    result(upstream(&bot)).await.unwrap_err();
    let requests = bot.requests();
    assert!(requests[0].line.starts_with("POST /callback"));
    assert_eq!(requests.len(), 1, "no request followed the redirect");
}

#[tokio::test]
async fn upstream_status_decides_though_the_body_is_cut() {
    let cut = after("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
    assert_eq!(cut, Ok(()));
    let cut = after("HTTP/1.1 500 Oh\r\ncontent-length: 100\r\n\r\nhalf").await;
    assert_eq!(cut, Err(EventHandlerError::retry("the bot answered 500")));
}

#[tokio::test]
async fn a_bot_that_cuts_the_connection_may_have_acted() {
    let bot = bot("");
    let cut = result(upstream(&bot)).await;
    assert_eq!(cut, Err(EventHandlerError::unknown("the bot gave no answer")));
    assert_eq!(bot.requests().len(), 1, "nothing is sent a second time by itself");
}

#[tokio::test]
async fn a_bot_that_takes_too_long_may_have_acted() {
    let bot = HttpStub::start(|_| StubAnswer::Hang);
    // The timeout may expire before the bot is reached; that outcome is unknown as well.
    let late = result(upstream(&bot).timeout(Duration::from_millis(500))).await;
    assert_eq!(late, Err(EventHandlerError::unknown("the bot gave no answer")));
}

#[tokio::test]
async fn upstream_that_is_down_has_not_acted() {
    let url = format!("http://127.0.0.1:{}/callback", hapax_testkit::free_port());
    let refused = result(UpstreamHandler::new(&url, secrets()).unwrap()).await;
    assert_eq!(refused, Err(EventHandlerError::away("the bot cannot be reached")));
}

#[test]
fn upstream_url_of_wrong_form_is_refused_and_not_shown() {
    for wrong in ["", "127.0.0.1:3000", "ftp://bot", "http://", "http://u:hidden@bot", "http://u@b"]
    {
        let refused = UpstreamHandler::new(wrong, secrets()).err().expect(wrong).to_string();
        assert!(refused.contains("http://127.0.0.1:3000/callback"), "{refused}");
        assert!(!refused.contains("hidden"), "{refused}");
    }
    assert!(UpstreamHandler::new("https://bot.example/x?y=1", secrets()).is_ok());
}

/// Reports each try, with its result unchanged.
struct WatchedHandler {
    upstream: UpstreamHandler,
    tries: mpsc::UnboundedSender<Result<(), EventHandlerError>>,
}

#[async_trait]
impl LineEventHandler for WatchedHandler {
    async fn handle(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError> {
        let result = self.upstream.handle(event, context).await;
        let _ = self.tries.send(result.clone());
        result
    }
}

/// A gateway with three stored events before a bot.
struct TriedBot {
    gateway: Gateway,
    store: Arc<MemoryStore>,
    tries: mpsc::UnboundedReceiver<Result<(), EventHandlerError>>,
    worker: tokio::task::JoinHandle<()>,
}

impl TriedBot {
    async fn start(port: u16) -> Self {
        let url = format!("http://127.0.0.1:{port}/callback");
        let upstream = UpstreamHandler::new(&url, secrets()).unwrap();
        let (sender, tries) = mpsc::unbounded_channel();
        let handler = Arc::new(WatchedHandler { upstream, tries: sender });
        let millis = Duration::from_millis;
        let config = GatewayConfig::new()
            .store_timeout(WAIT_TIMEOUT)
            .backoff(Backoff::new(millis(1), millis(10)))
            .poll_interval(millis(5))
            .max_attempts(2);
        let store = Arc::new(MemoryStore::default());
        let client = LineClient::new("http://127.0.0.1:9", "token").unwrap();
        let gateway = Gateway::new(store.clone(), secrets(), client, handler, config);
        for user in 0..3 {
            let event = events::text(&format!("Uf00d{user}"), "🥚").to_string();
            let body = Bytes::from(webhook(&event));
            let answer = gateway.receive(Some(&secrets().sign(&body)), &body).await;
            assert_eq!(answer, WebhookStatus::Accepted);
        }
        let running = gateway.clone();
        let worker = tokio::spawn(async move { running.run(std::future::pending()).await });
        Self { gateway, store, tries, worker }
    }

    async fn depth(&self) -> QueueDepth {
        self.store.depth(self.gateway.queue(), None).await.unwrap()
    }

    /// Waits for so many failed tries, more than the attempts of all events; no event may be dead.
    async fn fails(&mut self, tries: usize) {
        for _ in 0..tries {
            let result = tokio::time::timeout(WAIT_TIMEOUT, self.tries.recv()).await;
            let is_dead = self.depth().await.dead > 0;
            assert!(result.is_ok() && !is_dead, "the events wait for the bot");
            result.unwrap().unwrap().unwrap_err();
        }
    }

    /// Waits until all three events are handled.
    async fn recovers(mut self) {
        let mut handled = 0;
        while handled < 3 {
            let result = tokio::time::timeout(WAIT_TIMEOUT, self.tries.recv()).await;
            handled += usize::from(result.unwrap().unwrap().is_ok());
        }
        let all = async {
            while self.depth().await.in_flight > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, all).await.unwrap();
        assert_eq!(self.depth().await.dead, 0);
        self.worker.abort();
    }
}

#[tokio::test]
async fn fault_08_bot_that_refuses_connections_costs_no_attempts() {
    let port = hapax_testkit::free_port();
    let mut tried = TriedBot::start(port).await;
    tried.fails(10).await;
    let _bot = HttpStub::start_at(port, |_| StubAnswer::RespondAndClose(NO_CONTENT.into()));
    tried.recovers().await;
}

#[tokio::test]
async fn fault_08_bot_that_answers_503_to_all_costs_no_attempts() {
    let is_away = Arc::new(AtomicBool::new(true));
    let away = is_away.clone();
    let bot = HttpStub::start(move |_| {
        let later = "HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n";
        let answer = if away.load(Ordering::SeqCst) { later } else { NO_CONTENT };
        StubAnswer::RespondAndClose(answer.into())
    });
    let mut tried = TriedBot::start(bot.port()).await;
    tried.fails(10).await;
    is_away.store(false, Ordering::SeqCst);
    tried.recovers().await;
}
