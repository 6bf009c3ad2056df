//! Server-sent events: jobs followed over HTTP, for example with `EventSource` in a browser.
//!
//! An [`EventStream`](stream::EventStream) takes frames from its follower and writes them to a sink:
//! the socket itself for HTTP/1.1, a response body otherwise. Idle HTTP/1.1 streams of one job move to
//! a shared [fan-out task](fanout).

mod body;
pub(crate) mod cors;
mod fanout;
mod frame;
pub(crate) mod signed_link;
mod slots;
mod socket;
mod stream;

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use hapax::Key;
use hapax::bus::{FollowFrom, MultiCursor};
use hapax::log::{Cursor, MAX_NUMBER};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::api::app::AppState;
use crate::api::request::headers::single_header;
use crate::api::request::{ApiRequest, parse_query_number};
use crate::api::response::ApiResult;
use crate::problem::{Problem, ProblemKind};
pub(crate) use frame::{EventBus, FrameForm};
pub(crate) use stream::EventStreams;
use stream::StreamSource;

pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Tells nginx not to buffer the response.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub(crate) async fn follow_one(
    app: &AppState,
    request: &ApiRequest,
    (domain, job_id): (&str, &str),
    last_event_id: Option<&str>,
    last_seq: Option<&str>,
    form: FrameForm,
) -> ApiResult {
    request.check_link_covers(domain, job_id)?;
    let cursor = |text: &str| {
        text.parse::<Cursor>()
            .map_err(|error| Problem::invalid(format!("the last event id: {error}")))
    };
    let seq =
        last_seq.map(|text| parse_query_number("last_seq", text, 0..=MAX_NUMBER)).transpose()?;
    let since = match (resume_cursor(request, last_event_id, cursor)?, seq) {
        (Some(cursor), _) => FollowFrom::Cursor(cursor),
        (None, Some(seq)) => FollowFrom::Seq(seq),
        (None, None) => FollowFrom::Start,
    };
    let bus = app.bus.clone().tenant(request.tenant.clone());
    // Operators' requests are no activity: an open console would be told of itself.
    let requested = (form != FrameForm::Masked).then_some(request.received);
    let follow = bus.follow(domain, job_id, since);
    open_stream(app, request, requested, form, follow, StreamSource::OneJob).await
}

pub(crate) async fn follow_many(
    app: &AppState,
    request: &ApiRequest,
    jobs: &[(&str, &str)],
    last_event_id: Option<&str>,
    form: FrameForm,
) -> ApiResult {
    let bookmark = |text: &str| {
        text.parse::<MultiCursor>().map_err(|_| {
            Problem::invalid("the last event id is not one of a stream of several jobs")
        })
    };
    let since = resume_cursor(request, last_event_id, bookmark)?.unwrap_or_default();
    let mut keys = Vec::with_capacity(jobs.len());
    for (domain, job_id) in jobs {
        request.check_link_covers(domain, job_id)?;
        keys.push(Key::job(&request.tenant, domain, job_id)?);
    }
    if !MultiCursor::can_distinguish(&keys) {
        return Err(Problem::invalid("query parameter `job` names a job twice"));
    }
    let (follow, requested) = (app.bus.follow_all(&keys, &since), Some(request.received));
    open_stream(app, request, requested, form, follow, StreamSource::ManyJobs).await
}

/// Follows jobs that no caller can name, from a cursor of the server's choice or where the client was.
pub(crate) async fn follow_keys(
    app: &AppState,
    request: &ApiRequest,
    jobs: &[Key],
    from: MultiCursor,
    form: FrameForm,
) -> ApiResult {
    let cursor = |text: &str| {
        text.parse::<MultiCursor>()
            .map_err(|_| Problem::invalid("the last event id is not one of this stream"))
    };
    let since = resume_cursor(request, None, cursor)?.unwrap_or(from);
    let follow = app.bus.follow_all(jobs, &since);
    open_stream(app, request, None, form, follow, StreamSource::ManyJobs).await
}

/// The cursor of `Last-Event-ID`, else that of the query: a browser reconnects with the original URL.
fn resume_cursor<T>(
    request: &ApiRequest,
    from_query: Option<&str>,
    parse: impl Fn(&str) -> Result<T, Problem>,
) -> Result<Option<T>, Problem> {
    let from_query = from_query.map(&parse).transpose()?;
    let Some(header) = single_header(&request.headers, &LAST_EVENT_ID)? else {
        return Ok(from_query);
    };
    let malformed = |_| Problem::invalid("header `Last-Event-ID` is not printable ASCII");
    parse(header.to_str().map_err(malformed)?).map(Some)
}

/// Acquires a slot, begins to follow, and responds with the stream. `requested` is when the request came, if it is
/// activity of its tenant.
async fn open_stream<F, E: Into<Problem>>(
    app: &AppState,
    request: &ApiRequest,
    requested: Option<Instant>,
    form: FrameForm,
    follow: impl Future<Output = Result<Option<F>, E>>,
    source: impl FnOnce(Box<F>) -> StreamSource,
) -> ApiResult {
    if app.readiness.is_stopping() {
        return Err(Problem::new(ProblemKind::ShuttingDown, "reconnect")
            .retry_after(Duration::from_secs(1)));
    }
    let link = request.link.as_ref().map(|link| link.id);
    let slot = app.streams.slots.acquire(&request.tenant, link)?;
    let Some(follower) = app.call_store(follow).await? else {
        return Ok(StatusCode::NO_CONTENT.into_response());
    };
    let expires_at = request.link.as_ref().map(|link| link.stream_deadline());
    let source = source(Box::new(follower));
    let stream = app.streams.new_stream(slot, source, form, expires_at, requested);
    let mut response = Response::new(axum::body::Body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(body::attach(response, stream, app.streams.fanout.clone()))
}
