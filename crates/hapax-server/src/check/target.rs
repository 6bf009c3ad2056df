//! The service that is checked: its requests, its answers and its count of executions.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use hapax_http_client::{FullResponse, HttpClient, HttpClientConfig, get, post};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::CheckArgs;
use super::profile::Profile;
use super::restart::Restart;

/// The largest response that a check reads.
const MAX_RESPONSE: usize = 16 << 20;
/// How many exchanges are kept to show a failure.
const KEPT_EXCHANGES: usize = 6;
/// The count of executions is final when it stood still for so long.
const STANDS_STILL: Duration = Duration::from_millis(150);
/// How often the count is asked for before the check is given up.
const COUNT_ATTEMPTS: usize = 3;
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The request body: what the service is asked to answer.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct Order {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) binary: bool,
    /// Not every service knows this one: its check is skipped where the response has a length.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) stream: bool,
}

impl Order {
    pub(super) fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    pub(super) fn size(size: usize) -> Self {
        Self { size: Some(size), ..Self::default() }
    }

    pub(super) fn slow(delay_ms: u64) -> Self {
        Self { delay_ms: Some(delay_ms), ..Self::default() }
    }
}

/// A request to the checked route.
#[derive(Clone)]
pub(super) struct OrderRequest {
    order: Order,
    suffix: &'static str,
    headers: HeaderMap,
}

impl OrderRequest {
    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Replaces the keys of the request by these header values.
    pub(super) fn raw_keys(mut self, values: &[&[u8]]) -> Self {
        self.headers.remove(IDEMPOTENCY_KEY);
        for value in values {
            let value = HeaderValue::from_bytes(value).expect("a header value without line feeds");
            self.headers.append(IDEMPOTENCY_KEY, value);
        }
        self
    }

    /// Appends to the path: `/other`, or a query.
    pub(super) fn suffix(mut self, suffix: &'static str) -> Self {
        self.suffix = suffix;
        self
    }

    pub(super) fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }
}

/// A response, or the reason why there is none.
pub(super) type Answer = Result<FullResponse, String>;

#[derive(Deserialize)]
struct Count {
    executions: u64,
}

pub(super) struct Target {
    client: HttpClient,
    base: String,
    path: String,
    count: Uri,
    headers: HeaderMap,
    other_caller: Option<(HeaderName, HeaderValue)>,
    pub(super) profile: Profile,
    pub(super) timeout: Duration,
    pub(super) retention: Option<Duration>,
    pub(super) restart: Option<Restart>,
    exchanges: Mutex<Vec<String>>,
}

impl Target {
    pub(super) fn new(args: &CheckArgs) -> anyhow::Result<Self> {
        let (Some(scheme), Some(authority)) = (args.url.scheme_str(), args.url.authority()) else {
            bail!("{} is no address; write http://HOST:PORT", args.url);
        };
        let base = format!("{scheme}://{authority}{}", args.url.path().trim_end_matches('/'));
        let url = |path: &str| {
            let path = path.trim_start_matches('/');
            format!("{base}/{path}").parse::<Uri>().with_context(|| format!("{path:?} is no path"))
        };
        let path = url(&args.path)?.path().to_owned();
        let count = match args.count_path.parse::<Uri>() {
            Ok(elsewhere) if elsewhere.scheme().is_some() => elsewhere,
            _ => url(&args.count_path)?,
        };
        // Pooled connections may be closed by the server just when a request is sent; a check must not take
        // that for a missing answer.
        let client = HttpClientConfig::default()
            .idle_timeout(Duration::ZERO)
            .max_response(MAX_RESPONSE)
            .build();
        let other = HeaderValue::from_static("Bearer hapax-check-other-caller");
        let headers: HeaderMap = args.header.iter().cloned().collect();
        let other_caller = match &args.other_caller {
            Some(given) => Some(given.clone()),
            None if headers.is_empty() => Some((AUTHORIZATION, other)),
            None => None,
        };
        Ok(Self {
            client,
            base: format!("{scheme}://{authority}"),
            path,
            count,
            headers,
            other_caller,
            profile: args.profile,
            timeout: args.timeout,
            retention: args.retention,
            restart: args.restart.clone().map(Restart::new),
            exchanges: Mutex::default(),
        })
    }

    pub(super) fn url(&self) -> String {
        format!("{}{}", self.base, self.path)
    }

    /// The header of another caller, where one is known.
    pub(super) fn other_caller(&self) -> Option<(HeaderName, HeaderValue)> {
        self.other_caller.clone()
    }

    /// A request with a key that was never used.
    pub(super) fn fresh(&self, order: Order) -> OrderRequest {
        let key = self.profile.header_value(&Uuid::new_v4().to_string());
        self.without_key(order).raw_keys(&[key.as_bytes()])
    }

    pub(super) fn without_key(&self, order: Order) -> OrderRequest {
        OrderRequest { order, suffix: "", headers: self.headers.clone() }
    }

    /// Sends the request and waits for the end of its answer.
    pub(super) async fn send(&self, request: &OrderRequest) -> Answer {
        let answer = self.client.call(self.http_request(request), self.timeout).await;
        let answer = answer.map_err(|error| error.to_string());
        self.note(request, &answer);
        answer
    }

    /// Sends the request and closes the connection after this time, unless there is an answer before.
    pub(super) async fn send_and_leave(&self, request: &OrderRequest, after: Duration) {
        let sent = self.client.call(self.http_request(request), self.timeout);
        let answer = match tokio::time::timeout(after, sent).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the client left after {after:?}")),
        };
        self.note(request, &answer);
    }

    fn http_request(&self, request: &OrderRequest) -> Request<http_body_util::Full<Bytes>> {
        let uri = format!("{}{}", self.url(), request.suffix);
        let mut built = post(uri.parse().expect("a path and a suffix"), &request.order);
        built.headers_mut().extend(request.headers.clone());
        built
    }

    /// The number of executions as the service tells it now. Asked again where it fails: one lost connection
    /// says nothing about the service.
    pub(super) async fn executions(&self) -> anyhow::Result<u64> {
        for _ in 1..COUNT_ATTEMPTS {
            if let Ok(count) = self.ask_executions().await {
                return Ok(count);
            }
            sleep(STANDS_STILL).await;
        }
        self.ask_executions().await
    }

    /// Fails unless the service answers, and tells its count, which may be at another address.
    pub(super) async fn is_up(&self) -> anyhow::Result<()> {
        let uri: Uri = self.url().parse()?;
        self.client.call(get(uri), self.timeout).await.with_context(|| self.url())?;
        self.executions().await.map(drop)
    }

    async fn ask_executions(&self) -> anyhow::Result<u64> {
        let what = || format!("GET {}", self.count);
        let mut request = get(self.count.clone());
        request.headers_mut().extend(self.headers.clone());
        let answer = self.client.call(request, self.timeout).await;
        let answer = answer.with_context(what)?;
        ensure!(answer.status == StatusCode::OK, "{} was answered {}", what(), answer.status);
        let count = answer.json::<Count>();
        Ok(count.with_context(|| format!("{} is not {{\"executions\": N}}", what()))?.executions)
    }

    /// The number of executions once it stands still.
    pub(super) async fn final_executions(&self) -> anyhow::Result<u64> {
        let (mut last, deadline) = (self.executions().await?, Instant::now() + self.timeout);
        loop {
            sleep(STANDS_STILL).await;
            let now = self.executions().await?;
            if now == last || Instant::now() > deadline {
                return Ok(now);
            }
            last = now;
        }
    }

    /// Waits until the service has counted more than `before`, or for `longest`. Returns the last count.
    pub(super) async fn counted_more_than(
        &self,
        before: u64,
        longest: Duration,
    ) -> anyhow::Result<u64> {
        let deadline = Instant::now() + longest;
        loop {
            let now = self.executions().await?;
            if now > before || Instant::now() > deadline {
                return Ok(now);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether the service does what every check relies on.
    pub(super) async fn answers_as_asked(&self) -> anyhow::Result<()> {
        let before = self.executions().await?;
        let asked = Order { status: Some(202), size: Some(64), ..Order::default() };
        let answer = self.send(&self.fresh(asked)).await;
        let answer = answer.map_err(anyhow::Error::msg).context(self.url())?;
        let fix = "the guide `hapax check` says what the route must do";
        ensure!(
            answer.status.as_u16() == 202 && answer.body.len() == 64,
            "POST {} was asked for status 202 and 64 bytes, and answered {} and {} bytes; {fix}",
            self.url(),
            answer.status.as_u16(),
            answer.body.len()
        );
        let ran = self.final_executions().await?.saturating_sub(before);
        ensure!(
            ran == 1,
            "one request with a new key was counted {ran} times at {}; {fix}",
            self.count
        );
        Ok(())
    }

    /// Forgets the exchanges of the check before.
    pub(super) fn begin_check(&self) {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The requests of the running check with their answers: the first and the last ones.
    pub(super) fn exchanges(&self) -> Vec<String> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, request: &OrderRequest, answer: &Answer) {
        let mut text = format!("POST {}{}", self.path, request.suffix);
        for name in [IDEMPOTENCY_KEY, AUTHORIZATION] {
            for value in request.headers.get_all(&name) {
                let value = String::from_utf8_lossy(value.as_bytes());
                let value = if name == AUTHORIZATION { "…".into() } else { value };
                let _ = write!(text, " [{name}: {value}]");
            }
        }
        let body = serde_json::to_string(&request.order).unwrap_or_default();
        let _ = match answer {
            Ok(answer) => write!(text, " {body} -> {}", described(answer)),
            Err(error) => write!(text, " {body} -> {error}"),
        };
        let mut exchanges = self.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        if exchanges.len() == KEPT_EXCHANGES {
            exchanges.remove(KEPT_EXCHANGES / 2);
        }
        exchanges.push(text);
    }
}

/// The status, the length, the code of a problem document, and whether it says that it is a replay.
pub(super) fn described(answer: &FullResponse) -> String {
    let mut text = format!("{}, {} bytes", answer.status.as_u16(), answer.body.len());
    if let Some(code) = problem_code(answer) {
        let _ = write!(text, ", {code}");
    }
    for name in ["idempotent-replayed", "retry-after"] {
        if let Some(value) = answer.headers.get(name) {
            let _ = write!(text, ", {name}: {}", String::from_utf8_lossy(value.as_bytes()));
        }
    }
    text
}

/// The last part of a problem document's type.
fn problem_code(answer: &FullResponse) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
    let kind = problem.get("type")?.as_str()?;
    Some(kind.rsplit('/').next().unwrap_or(kind).to_owned())
}
