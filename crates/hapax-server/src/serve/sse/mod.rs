//! Event streams: jobs followed over HTTP, as browsers do it with `EventSource`.

mod body;
pub(crate) mod cors;
mod fanout;
pub(crate) mod signed_link;
mod socket;
mod source;
mod stream;

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use hapax::Key;
use hapax::bus::{Bookmark, Since};
use hapax::log::{Cursor, MAX_NUMBER};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};

use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::request::headers::one;
use crate::serve::request::{Call, number};
use crate::serve::response::Answer;
pub(crate) use body::lasting;
use source::Source;
pub(crate) use stream::Streams;

pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Tells nginx to pass events on as they come.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Follows one job.
pub(crate) async fn of_one(
    app: &App,
    call: &Call,
    (domain, job_id): (&str, &str),
    last_event_id: Option<&str>,
    last_seq: Option<&str>,
) -> Answer {
    call.may_see(domain, job_id)?;
    let cursor = |text: &str| {
        text.parse::<Cursor>()
            .map_err(|error| Problem::invalid(format!("the last event id: {error}")))
    };
    let asked = last_event_id.map(cursor).transpose()?;
    let seq = last_seq.map(|text| number("last_seq", text, 0..=MAX_NUMBER)).transpose()?;
    // The header is newer than the address, which a browser repeats as it was.
    let newest = last_seen(call)?.map(cursor).transpose()?;
    let since = match (newest.or(asked), seq) {
        (Some(cursor), _) => Since::Cursor(cursor),
        (None, Some(seq)) => Since::Seq(seq),
        (None, None) => Since::Start,
    };
    let bus = app.bus.clone().tenant(call.tenant.clone());
    open(app, call, bus.follow(domain, job_id, since), Source::One).await
}

/// Follows several jobs.
pub(crate) async fn of_many(
    app: &App,
    call: &Call,
    jobs: &[(&str, &str)],
    last_event_id: Option<&str>,
) -> Answer {
    let bookmark = |text: &str| {
        text.parse::<Bookmark>().map_err(|_| {
            Problem::invalid("the last event id is not one that a stream of several jobs gave")
        })
    };
    let asked = last_event_id.map(bookmark).transpose()?;
    let newest = last_seen(call)?.map(bookmark).transpose()?;
    let mut keys = Vec::with_capacity(jobs.len());
    for (domain, job_id) in jobs {
        call.may_see(domain, job_id)?;
        keys.push(Key::job(&call.tenant, domain, job_id)?);
    }
    if !Bookmark::tells_apart(&keys) {
        return Err(Problem::invalid("query parameter `job` names a job twice"));
    }
    let since = newest.or(asked).unwrap_or_default();
    open(app, call, app.bus.follow_all(&keys, &since), Source::Many).await
}

fn last_seen(call: &Call) -> Result<Option<&str>, Problem> {
    let malformed = || Problem::invalid("header `Last-Event-ID` is not printable ASCII");
    let value = one(&call.headers, &LAST_EVENT_ID)?;
    value.map(|value| value.to_str().map_err(|_| malformed())).transpose()
}

/// Takes a place, follows, and answers with what comes.
async fn open<F, E: Into<Problem>>(
    app: &App,
    call: &Call,
    follow: impl Future<Output = Result<Option<F>, E>>,
    source: impl FnOnce(Box<F>) -> Source,
) -> Answer {
    if app.readiness.is_stopping() {
        return Err(Problem::new(ProblemKind::ShuttingDown, "connect again")
            .retry_after(Duration::from_secs(1)));
    }
    let place = app.streams.enter()?;
    let Some(follower) = app.ask(Duration::ZERO, follow).await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let ends = call.link.as_ref().map(|link| link.ends());
    let stream = app.streams.begin(place, source(Box::new(follower)), ends);
    let mut response = Response::new(axum::body::Body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(body::attach(response, stream, app.streams.crowds.clone()))
}
