use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::activity::{self, Activity, ClaimActivity};
use hapax_core::command::{Begun, CommandError, CommandState, CommandView};
use hapax_core::lock::OnStoreError;
use hapax_core::trace::{self, InTrace, TRACEPARENT, Traceparent};
use hapax_core::{Key, StoreError, Ticket};
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Body as HttpBody;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument;

use crate::attached_run::AttachedRun;
use crate::claim_guard::{ClaimGuard, within};
use crate::first_run::FirstRun;
use crate::future::ResponseFuture;
use crate::layer::Shared;
use crate::limits::CallerPermit;
use crate::replay::{RunOrRespond, decide};
use crate::request::parse_head;
use crate::{
    BoxError, FullBody, IdempotencyEvent, KeyedRequest, Problem, ProblemKind, RequestBody,
    ResponseBody,
};

pub(crate) const HAPAX_ATTEMPT: HeaderName = HeaderName::from_static("hapax-attempt");
pub(crate) const HAPAX_FENCE: HeaderName = HeaderName::from_static("hapax-fence");
const HAPAX_UNPROTECTED: HeaderName = HeaderName::from_static("hapax-unprotected");

/// A service that runs once for each key.
#[derive(Clone)]
pub struct Idempotency<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Idempotency<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }
}

impl<S: fmt::Debug> fmt::Debug for Idempotency<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        // Strip client-supplied `Hapax-*` headers.
        parts.headers.remove(HAPAX_ATTEMPT);
        parts.headers.remove(HAPAX_FENCE);
        let Some(key) = parse_head(&self.shared.config, &parts).transpose() else {
            let request = Request::from_parts(parts, RequestBody::passed_through(body));
            return ResponseFuture::keyless(call_in_trace(&mut self.inner, request));
        };
        // Call the service that was polled ready, and keep its clone.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        let shared = self.shared.clone();
        ResponseFuture::keyed(async move {
            let (since, method) = (Instant::now(), parts.method.clone());
            let read = match key {
                Ok(key) => read_request(&shared, key, parts, body).await,
                Err(problem) => Err(problem),
            };
            let (outcome, response) = match read {
                Ok((keyed, request, caller)) => {
                    let shared = shared.clone();
                    let waited = false;
                    KeyedCall { inner, shared, keyed, request, caller, waited }.respond().await
                }
                Err(problem) => refuse(&problem),
            };
            if outcome == IdempotencyEvent::Refused {
                shared.config.record_event(outcome, &method);
            }
            shared.config.record_answer(outcome, &method, since.elapsed());
            response
        })
    }
}

/// Calls the service in the trace of its request, so that messages which it enqueues belong to that
/// trace.
pub(crate) fn call_in_trace<S, B>(service: &mut S, request: Request<B>) -> InTrace<S::Future>
where
    S: Service<Request<B>>,
{
    let trace = trace_of(request.headers());
    trace::call_within(trace, || service.call(request))
}

/// `None` also where there are two: either could be the true one.
fn trace_of(headers: &HeaderMap) -> Option<Traceparent> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let (Some(trace), None) = (values.next(), values.next()) else { return None };
    Traceparent::parse(trace.to_str().ok()?)
}

async fn read_request<B>(
    shared: &Shared,
    key: Key,
    parts: Parts,
    body: B,
) -> Result<(KeyedRequest, Request<RequestBody<B>>, CallerPermit), Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if shared.first_runs.is_closed() {
        return Err(shutting_down());
    }
    let (config, limits) = (&shared.config, &shared.config.limits);
    let caller = limits.enter(key.tenant())?;
    if let Err(problem) = limits.check_detached()
        && !is_completed(shared, &key).await
    {
        return Err(problem);
    }
    let body = FullBody::read(body, config).await?;
    let cost = config.fingerprint.cost(body.bytes());
    limits.memory.check_possible(cost.saturating_add(body.bytes().len()))?;
    // Held while the fingerprint is computed.
    let _parsing = limits.memory.reserve(cost)?;
    let keyed = KeyedRequest::new(config, key, &parts, body.bytes());
    Ok((keyed, Request::from_parts(parts, RequestBody::full(body)), caller))
}

/// Whether the request has a response already, so that nothing more will run.
async fn is_completed(shared: &Shared, key: &Key) -> bool {
    let view = within(shared.config.store_timeout, shared.commands.look_at(key)).await;
    matches!(view, Ok(Some(CommandView { state: CommandState::Completed { .. }, .. })))
}

fn shutting_down() -> Problem {
    Problem::new(ProblemKind::ShuttingDown, "nothing was run; send the request again")
}

/// A response, and what to call it in metrics and hooks.
type Outcome<R, E> = (IdempotencyEvent, Result<Response<ResponseBody<R>>, E>);

fn refuse<R, E>(problem: &Problem) -> Outcome<R, E> {
    (IdempotencyEvent::Refused, Ok(problem.response().map(ResponseBody::full)))
}

/// A request with a key whose body was read.
struct KeyedCall<S, B> {
    inner: S,
    shared: Arc<Shared>,
    keyed: KeyedRequest,
    request: Request<RequestBody<B>>,
    /// Counts the request among those of its caller.
    caller: CallerPermit,
    waited: bool,
}

impl<S, B, R> KeyedCall<S, B>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async fn respond(mut self) -> Outcome<R, S::Error> {
        let begun = self.claim().await;
        if let Err(error) = &begun
            && self.may_run_unprotected(error)
        {
            return self.run_unprotected().await;
        }
        match decide(begun) {
            RunOrRespond::Run { ticket, attempt } => self.run(ticket, attempt).await,
            RunOrRespond::Respond(event, response) => {
                let replayed = event == IdempotencyEvent::Replayed;
                let event = if replayed && self.waited { IdempotencyEvent::Waited } else { event };
                self.record(event);
                (event, Ok(response.map(ResponseBody::full)))
            }
        }
    }

    /// Claims the key; where another request has it, waits for that one's response.
    async fn claim(&mut self) -> Result<Begun, CommandError> {
        let wait = self.shared.config.wait;
        match begin(&self.shared, &self.keyed, Duration::ZERO).await? {
            Begun::InProgress { .. } if !wait.is_zero() => {
                self.waited = true;
                // A waiting request gives its place in the service back, and asks for one again
                // when it may run.
                self.inner = self.inner.clone();
                self.keyed.refresh_token();
                begin(&self.shared, &self.keyed, wait).await
            }
            begun => Ok(begun),
        }
    }

    /// Runs the service, to its end even if the client disconnects.
    async fn run(mut self, ticket: Ticket, attempt: u32) -> Outcome<R, S::Error> {
        let (commands, lease) = (&self.shared.commands, self.shared.config.lease);
        let fence = ticket.fence;
        let running = commands.run_granted(self.keyed.key().clone(), ticket, attempt, lease);
        let Some(counted) = self.shared.first_runs.enter() else {
            // The layer was closed meanwhile. Nothing ran: let another server run it.
            tokio::spawn(async move { running.fail().await });
            return refuse(&shutting_down());
        };
        self.record(IdempotencyEvent::Started);
        let headers = self.request.headers_mut();
        headers.insert(HAPAX_ATTEMPT, attempt.into());
        headers.insert(HAPAX_FENCE, fence.0.into());
        let method = self.request.method().clone();
        let (client, run) = self.shared.config.limits.begin_run();
        let guards = (counted, self.caller, run);
        let claim = ClaimGuard::new(running, self.keyed, method, self.shared, guards);
        let (reply, response) = oneshot::channel();
        let run = FirstRun { claim, reply }.run(self.inner, !self.waited, self.request);
        let response = AttachedRun::new(run.in_current_span()).response(response).await;
        let response = response.unwrap_or_else(|_| {
            let problem = Problem::new(
                ProblemKind::OutcomeUnknown,
                "the service crashed while it handled the request; it may or may not have acted, \
                 and a retry does not run it again",
            );
            Ok(problem.response().map(ResponseBody::full))
        });
        let response = response.map(|r| r.map(|body| body.with_presence(client)));
        (IdempotencyEvent::Started, response)
    }

    /// Whether the request may run although the store failed. Not where the store has already
    /// reported that another request has the key, or that its value cannot be read.
    fn may_run_unprotected(&self, error: &CommandError) -> bool {
        let open = self.shared.config.on_store_error == OnStoreError::Open && !self.waited;
        let down = |error: &StoreError| !matches!(error, StoreError::Corrupt { .. });
        open && matches!(error, CommandError::Store(error) if down(error))
    }

    async fn run_unprotected(mut self) -> Outcome<R, S::Error> {
        self.record(IdempotencyEvent::Unprotected);
        let response = call_in_trace(&mut self.inner, self.request).await.map(|response| {
            let mut response = response.map(ResponseBody::passed_through);
            let reason = HeaderValue::from_static("store-unavailable");
            response.headers_mut().insert(HAPAX_UNPROTECTED, reason);
            response
        });
        (IdempotencyEvent::Unprotected, response)
    }

    /// Records what became of the claim.
    fn record(&self, event: IdempotencyEvent) {
        self.shared.config.record_event(event, self.request.method());
        let answer = match event {
            IdempotencyEvent::Started => ClaimActivity::FirstRun,
            IdempotencyEvent::Replayed => ClaimActivity::Replayed,
            IdempotencyEvent::Waited => ClaimActivity::Waited,
            IdempotencyEvent::Conflict => ClaimActivity::InProgress,
            IdempotencyEvent::Mismatch => ClaimActivity::Reused,
            IdempotencyEvent::Unknown => ClaimActivity::Unknown,
            _ => ClaimActivity::Failed,
        };
        activity::record(Activity::Claim { key: self.keyed.key(), answer, took: None });
    }
}

async fn begin(
    shared: &Shared,
    keyed: &KeyedRequest,
    wait: Duration,
) -> Result<Begun, CommandError> {
    let begin = shared.commands.begin_claim(keyed.key(), keyed.claim(), wait);
    within(shared.config.store_timeout.saturating_add(wait), begin).await
}
