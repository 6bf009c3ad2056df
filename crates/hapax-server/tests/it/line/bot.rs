//! A bot behind the gateway: it checks and records its calls, and behaves as the test asks.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hapax_line::{ChannelSecrets, LineClient, LineMessage, SIGNATURE_HEADER};
use hapax_testkit::wait_for;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::line::harness::{WAIT_TIMEOUT, eventually};

/// The bot's reaction to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reaction {
    /// Answers with this status.
    Answer(u16),
    /// Replies to the user, then answers 200.
    Reply(&'static str),
    /// Answers with this status when the call is [released](Bot::let_go).
    Hold(u16),
    /// Answers 200 after this time.
    After(Duration),
    /// Closes the connection without an answer.
    Cut,
}

/// One event, as the bot got it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) key: String,
    pub(crate) attempt: u32,
    /// `None` while the store is unavailable.
    pub(crate) fence: Option<u64>,
    pub(crate) body: Bytes,
    pub(crate) event: Value,
    /// Whether the bot finished the call.
    pub(crate) ended: bool,
    /// When it began and when it ended, on a clock that ticks with every beginning and end of a call.
    pub(crate) began_at: u64,
    pub(crate) ended_at: u64,
}

impl Call {
    pub(crate) fn is(&self, event: &Value) -> bool {
        self.event["webhookEventId"] == event["webhookEventId"]
    }
}

type Script = Arc<dyn Fn(&Call) -> Reaction + Send + Sync>;

struct Inner {
    secrets: ChannelSecrets,
    client: LineClient,
    script: Mutex<Script>,
    calls: Mutex<Vec<Call>>,
    /// Violations: calls that a gateway must never send.
    wrong: Mutex<Vec<String>>,
    go: Semaphore,
    ticks: AtomicU64,
}

pub(crate) struct Bot {
    address: String,
    inner: Arc<Inner>,
}

impl Bot {
    /// A bot that answers 200.
    pub(crate) async fn start(secrets: ChannelSecrets, client: LineClient) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let inner = Arc::new(Inner {
            secrets,
            client,
            script: Mutex::new(Arc::new(|_| Reaction::Answer(200))),
            calls: Mutex::default(),
            wrong: Mutex::default(),
            go: Semaphore::new(0),
            ticks: AtomicU64::new(0),
        });
        tokio::spawn({
            let inner = inner.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(converse(inner.clone(), stream));
                }
            }
        });
        Self { address, inner }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sets the reaction to every further call.
    pub(crate) fn does(&self, script: impl Fn(&Call) -> Reaction + Send + Sync + 'static) {
        *lock(&self.inner.script) = Arc::new(script);
    }

    pub(crate) fn holds(&self) {
        self.does(|_| Reaction::Hold(200));
    }

    /// Releases this number of calls, held now or later.
    pub(crate) fn let_go(&self, calls: usize) {
        self.inner.go.add_permits(calls);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        lock(&self.inner.calls).clone()
    }

    pub(crate) fn calls_of(&self, event: &Value) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.is(event)).collect()
    }

    /// Waits until this number of calls have come, and returns all of them.
    pub(crate) fn begun(&self, calls: usize) -> Vec<Call> {
        let what = format!("the bot is called {calls} times");
        wait_for(&what, WAIT_TIMEOUT, || Some(self.calls()).filter(|all| all.len() >= calls))
    }

    /// Waits until the bot has finished this number of calls.
    pub(crate) fn ended(&self, calls: usize) {
        let ended = || self.calls().iter().filter(|call| call.ended).count();
        eventually(&format!("the bot has finished {calls} calls"), || ended() >= calls);
    }
}

impl Drop for Bot {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let wrong = lock(&self.inner.wrong);
            assert!(wrong.is_empty(), "what no gateway may send: {wrong:?}");
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn converse(inner: Arc<Inner>, stream: TcpStream) {
    let service = service_fn(|request| answer(inner.clone(), request));
    // A gateway may be killed during a call, so errors are ignored.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Makes hyper close the connection.
fn hung_up() -> io::Error {
    io::Error::other("the bot hangs up")
}

async fn answer(
    inner: Arc<Inner>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| hung_up())?.to_bytes();
    let header = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    if !header(SIGNATURE_HEADER).is_some_and(|signature| inner.secrets.verify(&body, signature)) {
        lock(&inner.wrong).push("a wrong signature".into());
        return Ok(status(401));
    }
    let json: Value = serde_json::from_slice(&body).unwrap_or_default();
    let number = |name| header(name).and_then(|value| value.parse().ok());
    let call = Call {
        path: head.uri.path().to_owned(),
        key: header("idempotency-key").unwrap_or_default().to_owned(),
        attempt: number("hapax-attempt").unwrap_or(0) as u32,
        fence: number("hapax-fence"),
        event: json["events"][0].clone(),
        ended: false,
        began_at: 0,
        ended_at: 0,
        body,
    };
    if call.key.is_empty() || call.attempt == 0 || json["events"][1] != Value::Null {
        lock(&inner.wrong).push("no key, no attempt, or more than one event".into());
        return Ok(status(400));
    }
    act(&inner, call).await
}

async fn act(inner: &Inner, mut call: Call) -> Result<Response<Full<Bytes>>, io::Error> {
    let script = lock(&inner.script).clone();
    let deed = script(&call);
    let token = call.event["replyToken"].as_str().unwrap_or_default().to_owned();
    let number = {
        let mut calls = lock(&inner.calls);
        call.began_at = inner.ticks.fetch_add(1, Ordering::SeqCst);
        calls.push(call);
        calls.len() - 1
    };
    let answered = match deed {
        Reaction::Answer(answered) => answered,
        Reaction::Reply(text) => {
            let sent = inner.client.reply(&token, &[LineMessage::text(text)]).await;
            if sent.is_ok() { 200 } else { 500 }
        }
        Reaction::Hold(answered) => {
            inner.go.acquire().await.map_err(|_| hung_up())?.forget();
            answered
        }
        Reaction::After(time) => {
            tokio::time::sleep(time).await;
            200
        }
        Reaction::Cut => return Err(hung_up()),
    };
    let call = &mut lock(&inner.calls)[number];
    call.ended = true;
    call.ended_at = inner.ticks.fetch_add(1, Ordering::SeqCst);
    Ok(status(answered))
}

fn status(code: u16) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    response
}
