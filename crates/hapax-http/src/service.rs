use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax_core::command::{Begun, CommandError, Commands, Started};
use hapax_core::lock::OnStoreError;
use http::header::HeaderValue;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as HttpBody;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tower_service::Service;

use crate::identity::{Keyed, key_of, tenant_of};
use crate::replay::replay;
use crate::run::FirstRun;
use crate::{Answer, Body, BoxError, Event, Idempotency, Problem, Settings};

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
        let inner = mem::replace(&mut self.inner, clone);
        let (settings, commands) = (self.settings.clone(), self.commands.clone());
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            // What only hapax may say, nobody else says.
            parts.headers.remove("hapax-attempt");
            parts.headers.remove("hapax-fence");
            match key_of(&settings, &parts) {
                Ok(None) => through(inner, Request::from_parts(parts, Body::through(body))).await,
                Ok(Some(_)) => keyed(inner, commands, settings, parts, body).await,
                Err(problem) => Ok(refused(&settings, &parts, &problem)),
            }
        })
    }
}

async fn through<S, B, R>(
    mut inner: S,
    request: Request<Body<B>>,
) -> Result<Response<Answer<R>>, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
{
    Ok(inner.call(request).await?.map(Answer::through))
}

async fn keyed<S, B, R>(
    inner: S,
    commands: Commands,
    settings: Arc<Settings>,
    mut parts: Parts,
    body: B,
) -> Result<Response<Answer<R>>, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let asked = match ask(&settings, &parts, body).await {
        Ok(asked) => asked,
        Err(problem) => return Ok(refused(&settings, &parts, &problem)),
    };
    let (keyed, body) = asked;
    let whole = Body::Whole(body.into());
    let commands = commands.tenant(keyed.tenant);
    let begin = settings.begin(keyed.fingerprint);
    let since = Instant::now();
    match commands.start(&keyed.operation, &keyed.name, &begin).await {
        Ok(Started::Running(running)) => {
            settings.tell(Event::Started, &parts.method);
            parts.headers.insert("hapax-attempt", running.attempt().into());
            parts.headers.insert("hapax-fence", running.fence().0.into());
            let method = parts.method.clone();
            let (reply, answer) = oneshot::channel();
            let run = FirstRun { running, settings, method, reply };
            // On a task of its own: it runs to its end whether the client stays or not.
            tokio::spawn(run.go(inner, Request::from_parts(parts, whole)));
            answer.await.unwrap_or_else(|_| Ok(whole_answer(crashed().response())))
        }
        Ok(Started::Answered(begun)) => {
            let waited = since.elapsed().as_millis() > 0 && !settings.wait.is_zero();
            Ok(whole_answer(answered(&settings, &parts, begun, waited)))
        }
        Err(CommandError::Store(_)) if settings.on_store_error == OnStoreError::Open => {
            settings.tell(Event::Unprotected, &parts.method);
            let mut response = through(inner, Request::from_parts(parts, whole)).await?;
            let why = HeaderValue::from_static("store-unavailable");
            response.headers_mut().insert("hapax-unprotected", why);
            Ok(response)
        }
        Err(error) => {
            settings.tell(Event::StoreError, &parts.method);
            Ok(whole_answer(failed(&error).response()))
        }
    }
}

/// Reads the whole request and says what it is.
async fn ask<B>(settings: &Settings, parts: &Parts, body: B) -> Result<(Keyed, Bytes), Problem>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    // Who asks is told from the head alone: nothing is read for nobody.
    tenant_of(settings, parts)?;
    let body = match Limited::new(body, settings.limit).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Err(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "payload-too-large",
                "The request is too large to have a key",
                format!("a request with an Idempotency-Key takes at most {} bytes", settings.limit),
            ));
        }
        Err(_) => {
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "invalid-request",
                "The request did not arrive whole",
                "the body ended before its end; nothing was run",
            )
            .retryable());
        }
    };
    let keyed = Keyed::of(settings, parts, &body)?;
    Ok((keyed.expect("asked only where there is a key"), body))
}

fn refused<R>(settings: &Settings, parts: &Parts, problem: &Problem) -> Response<Answer<R>> {
    settings.tell(Event::Refused, &parts.method);
    whole_answer(problem.response())
}

pub(crate) fn whole_answer<R>(response: Response<Bytes>) -> Response<Answer<R>> {
    response.map(Answer::whole)
}

fn answered(settings: &Settings, parts: &Parts, begun: Begun, waited: bool) -> Response<Bytes> {
    let (event, response) = match begun {
        Begun::Completed { response, expires_in } => {
            let event = if waited { Event::Waited } else { Event::Replayed };
            (event, replay(&response, expires_in))
        }
        Begun::InProgress { retry_after } => (Event::Conflict, in_progress(retry_after).response()),
        Begun::KeyReused => (
            Event::Mismatch,
            Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "key-reused",
                "The Idempotency-Key belongs to another request",
                "this key was used with another body, query or content type; use a new one",
            )
            .response(),
        ),
        Begun::OutcomeUnknown { since } => (
            Event::Unknown,
            Problem::new(
                StatusCode::CONFLICT,
                "outcome-unknown",
                "Nobody knows whether an earlier attempt had its effect",
                "it ended without an answer; look at the service, then settle or release the key",
            )
            .with("since_ms", hapax_core::millis(since))
            .response(),
        ),
        Begun::Granted { .. } => unreachable!("a granted command is running"),
    };
    settings.tell(event, &parts.method);
    response
}

pub(crate) fn in_progress(retry_after: std::time::Duration) -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "in-progress",
        "The first request with this key still runs",
        "its answer will be there when it is done; ask again",
    )
    .retry_after(retry_after)
}

fn crashed() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "outcome-unknown",
        "The service crashed in the middle",
        "it may or may not have had its effect",
    )
}

fn failed(error: &CommandError) -> Problem {
    match error {
        CommandError::Store(_) => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "The store gives no answer",
            "nothing was run; try again",
        )
        .retryable(),
        _ => Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "The stored answer cannot be read",
            "it was written by another version, or is damaged; nothing was run",
        ),
    }
}
