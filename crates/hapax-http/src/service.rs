use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::StoreError;
use hapax_core::command::{Begun, CommandError, RunningCommand, Started};
use hapax_core::lock::OnStoreError;
use http::header::HeaderValue;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Instrument;

use crate::asked::read;
use crate::held::{Held, bounded};
use crate::identity::{Keyed, key_of, tenant_of};
use crate::layer::Shared;
use crate::run::FirstRun;
use crate::{Answer, Body, BoxError, Event, Idempotency, Problem, Whole, answers, traced};

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Answer<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let shared = self.shared.clone();
        let (mut parts, body) = request.into_parts();
        // What only hapax may say, nobody else says.
        parts.headers.remove("hapax-attempt");
        parts.headers.remove("hapax-fence");
        let key = key_of(&shared.settings, &parts);
        if let Ok(None) = key {
            let request = Request::from_parts(parts, Body::through(body));
            return Box::pin(async move {
                Ok(traced::call(&mut inner, request).await?.map(Answer::through))
            });
        }
        Box::pin(async move {
            let (since, method) = (Instant::now(), parts.method.clone());
            let (outcome, response) = match key {
                Ok(_) => keyed(inner, &shared, parts, body).await,
                Err(problem) => refused(&problem),
            };
            if outcome == Event::Refused {
                shared.settings.tell(Event::Refused, &method);
            }
            shared.settings.tell_answered(outcome, &method, since.elapsed());
            response
        })
    }
}

type Answered<R, E> = (Event, Result<Response<Answer<R>>, E>);

async fn keyed<S, B, R>(
    inner: S,
    shared: &Arc<Shared>,
    parts: Parts,
    body: B,
) -> Answered<R, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    match ask(shared, &parts, body).await {
        Ok((keyed, body)) => {
            let request = Request::from_parts(parts, Body::whole(body));
            Asked { inner, shared: shared.clone(), keyed, request, waited: false }.answer().await
        }
        Err(problem) => refused(&problem),
    }
}

/// Reads the whole request and says what it is.
async fn ask<B>(shared: &Shared, parts: &Parts, body: B) -> Result<(Keyed, Whole), Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if shared.gate.is_closed() {
        return Err(answers::shutting_down());
    }
    // Who asks is told from the head alone: nothing is read for nobody.
    tenant_of(&shared.settings, parts)?;
    let body = read(body, shared.settings.limit).await?;
    let keyed = Keyed::of(&shared.settings, parts, body.bytes())?;
    Ok((keyed.expect("asked only where there is a key"), body))
}

fn refused<R, E>(problem: &Problem) -> Answered<R, E> {
    (Event::Refused, Ok(problem.response().map(Answer::whole)))
}

/// A request with a key, read whole.
struct Asked<S, B> {
    inner: S,
    shared: Arc<Shared>,
    keyed: Keyed,
    request: Request<Body<B>>,
    waited: bool,
}

impl<S, B, R> Asked<S, B>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async fn answer(mut self) -> Answered<R, S::Error> {
        let (event, response) = match self.claim().await {
            Ok(Started::Running(running)) => return self.run(running).await,
            Ok(Started::Answered(begun)) => answers::answer(&begun, self.waited),
            Err(error) if self.may_pass(&error) => return self.run_unprotected().await,
            Err(error) => (Event::StoreError, answers::failed(&error).response()),
        };
        self.tell(event);
        (event, Ok(response.map(Answer::whole)))
    }

    /// Asks for the claim; where somebody else has it, waits for that one's answer.
    async fn claim(&mut self) -> Result<Started, CommandError> {
        let wait = self.shared.settings.wait;
        match start(&self.shared, &self.keyed, Duration::ZERO).await? {
            Started::Answered(Begun::InProgress { .. }) if !wait.is_zero() => {
                self.waited = true;
                // Who waits takes up no place in the service: it asks for one when it may run.
                self.inner = self.inner.clone();
                start(&self.shared, &self.keyed, wait).await
            }
            started => Ok(started),
        }
    }

    /// On a task of its own: it runs to its end whether the client stays or not.
    async fn run(mut self, running: RunningCommand) -> Answered<R, S::Error> {
        let Some(inside) = self.shared.gate.enter() else {
            // Closed since it was asked: nothing ran, and another server may.
            tokio::spawn(async move { running.fail().await });
            return refused(&answers::shutting_down());
        };
        self.tell(Event::Started);
        let headers = self.request.headers_mut();
        headers.insert("hapax-attempt", running.attempt().into());
        headers.insert("hapax-fence", running.fence().0.into());
        let method = self.request.method().clone();
        let held = Held::new(running, self.keyed, method, self.shared, inside);
        let (reply, answer) = oneshot::channel();
        let run = FirstRun { held, reply }.go(self.inner, !self.waited, self.request);
        tokio::spawn(run.in_current_span());
        let crashed = |_| Ok(answers::crashed().response().map(Answer::whole));
        (Event::Started, answer.await.unwrap_or_else(crashed))
    }

    /// Whether it may run although the store failed. Not where the store was heard saying that
    /// somebody else runs it, or holds something for it that cannot be read.
    fn may_pass(&self, error: &CommandError) -> bool {
        let open = self.shared.settings.on_store_error == OnStoreError::Open && !self.waited;
        let down = |error: &StoreError| !matches!(error, StoreError::Corrupt { .. });
        open && matches!(error, CommandError::Store(error) if down(error))
    }

    async fn run_unprotected(mut self) -> Answered<R, S::Error> {
        self.tell(Event::Unprotected);
        let response = traced::call(&mut self.inner, self.request).await.map(|response| {
            let mut response = response.map(Answer::through);
            let why = HeaderValue::from_static("store-unavailable");
            response.headers_mut().insert("hapax-unprotected", why);
            response
        });
        (Event::Unprotected, response)
    }

    fn tell(&self, event: Event) {
        self.shared.settings.tell(event, self.request.method());
    }
}

async fn start(shared: &Shared, keyed: &Keyed, wait: Duration) -> Result<Started, CommandError> {
    let begin = shared.settings.begin(keyed.fingerprint.clone(), wait);
    let commands = shared.commands.clone().tenant(keyed.tenant.clone());
    let start = commands.start(&keyed.operation, &keyed.name, &begin);
    bounded(shared.settings.store_limit.saturating_add(wait), start).await
}
