//! `/v1/events`

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hapax::bus::{MAX_JOBS, NewEvent};
use hapax::log::{Appended, MAX_APPEND, MAX_NUMBER};
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::Call;
use crate::serve::request::fields::{Fields, required};
use crate::serve::response::{Answer, json};
use crate::serve::sse;

/// An event to publish. Its identity is domain, job, stage and seq.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct PublishEvent {
    /// What kind of job it is.
    #[schema(min_length = 1, max_length = 255, example = "scan")]
    domain: String,
    /// Which job.
    #[schema(min_length = 1, max_length = 255, example = "job-1")]
    job_id: String,
    /// What the job is at; not `gap`, `snapshot` or `end`.
    #[schema(min_length = 1, max_length = 255, example = "vision")]
    stage: String,
    /// The producer's own number; the highest one is the job's state.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_u64, example = 10)]
    seq: u64,
    /// What it says.
    data: Value,
    /// Whether it is the job's last one. Stage `done` at seq 51 is so by itself.
    #[serde(rename = "final")]
    #[schema(default = false, nullable = false)]
    closes: Option<bool>,
    /// When it happened, as the producer writes it; now by default. Never compared.
    #[schema(max_length = 64, nullable = false)]
    timestamp: Option<String>,
}

/// One event, or several in order.
#[derive(ToSchema)]
#[schema(as = PublishEvents)]
#[serde(untagged)]
#[expect(dead_code, reason = "this is what the documentation shows")]
pub(crate) enum PublishEvents {
    One(PublishEvent),
    Many(Vec<PublishEvent>),
}

/// What became of an event.
#[derive(Serialize, ToSchema)]
pub(crate) struct PublishedEvent {
    /// Whether this call did it; false for a duplicate.
    published: bool,
    /// Where it is in its job's log.
    offset: u64,
    /// Which life of the log that is.
    epoch: u64,
}

/// What became of each event, in order.
#[derive(Serialize, ToSchema)]
pub(crate) struct PublishedEvents {
    results: Vec<PublishResult>,
}

/// What became of one of several events.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PublishResult {
    /// 201 where it was published, 200 where it was before.
    Done {
        status: u16,
        #[serde(flatten)]
        event: PublishedEvent,
    },
    /// 409 `event-conflict` or `job-closed`.
    Refused(ProblemDocument),
}

/// Publish events.
#[utoipa::path(
    post, path = "/v1/events", operation_id = "publish_events", tag = "events",
    request_body(content = PublishEvents),
    responses(
        (status = 201, body = PublishedEvent, description = "It is in the log"),
        (status = 200, body = PublishedEvents, description = "It was in the log before, with the same content (`published` is false); for an array, the results in order, each with its own `status`"),
        (status = 409, body = ProblemDocument, content_type = "application/problem+json", description = "`event-conflict`: the same identity with another content; `job-closed`"),
    ),
)]
pub(crate) async fn publish(State(app): State<App>, call: Call) -> Answer {
    call.no_query()?;
    let body: Value = serde_json::from_slice(&call.json()?)
        .map_err(|_| Problem::invalid("the body is not JSON"))?;
    let Value::Array(items) = body else {
        let event = event(body)?;
        let appended = publish_all(&app, &call, vec![event]).await?;
        return Ok(one(appended[0]));
    };
    if items.len() > MAX_APPEND {
        let text = format!("an array takes up to {MAX_APPEND} events; send several");
        return Err(Problem::invalid(text));
    }
    let item =
        |(i, item)| event(item).map_err(|problem| problem.prefix_detail(&format!("item {i}: ")));
    let events = items.into_iter().enumerate().map(item).collect::<Result<Vec<_>, _>>()?;
    let results = publish_all(&app, &call, events).await?.into_iter().map(result).collect();
    Ok(json(StatusCode::OK, &PublishedEvents { results }))
}

async fn publish_all(
    app: &App,
    call: &Call,
    events: Vec<NewEvent>,
) -> Result<Vec<Appended>, Problem> {
    let bus = app.bus.clone().tenant(call.tenant.clone());
    app.ask(std::time::Duration::ZERO, bus.publish_all(&events)).await
}

fn event(item: Value) -> Result<NewEvent, Problem> {
    let mut fields = Fields::of(item, "an event must be a JSON object")?;
    let mut text = |name: &str| required(name, fields.text(name)?);
    let (domain, job_id, stage) = (text("domain")?, text("job_id")?, text("stage")?);
    let seq = required("seq", fields.number("seq", 0..=MAX_NUMBER)?)?;
    let event = NewEvent {
        data: required("data", fields.any("data"))?,
        closes: fields.flag("final")?.unwrap_or_default(),
        timestamp: fields.text("timestamp")?,
        ..NewEvent::new(domain, job_id, stage, seq)
    };
    fields.finish()?;
    Ok(event)
}

fn one(appended: Appended) -> Response {
    match result(appended) {
        PublishResult::Done { event, .. } if event.published => json(StatusCode::CREATED, &event),
        PublishResult::Done { event, .. } => json(StatusCode::OK, &event),
        PublishResult::Refused(_) => refusal(appended).into_response(),
    }
}

fn result(appended: Appended) -> PublishResult {
    let (status, published, at) = match appended {
        Appended::Published(at) => (201, true, at),
        Appended::Duplicate(at) => (200, false, at),
        Appended::Conflict | Appended::Closed => {
            return PublishResult::Refused(refusal(appended).into());
        }
    };
    let event = PublishedEvent { published, offset: at.offset, epoch: at.epoch.0 };
    PublishResult::Done { status, event }
}

fn refusal(appended: Appended) -> Problem {
    match appended {
        Appended::Conflict => Problem::new(
            ProblemKind::EventConflict,
            "an event with this stage and seq is in the log, and says something else",
        ),
        _ => Problem::new(ProblemKind::JobClosed, "the job has had its last event"),
    }
}

/// Follow several jobs on one connection.
#[utoipa::path(
    get, path = "/v1/events/stream", operation_id = "follow_jobs", tag = "events",
    params(
        ("job" = Vec<String>, Query, description = "`domain/job_id`, once for each job; up to 32", example = json!(["scan/job-1", "scan/job-2"])),
        ("last_event_id" = Option<String>, Query, description = "Where to go on: the id of the last event, which is for all the jobs. `Last-Event-ID` wins over it"),
        ("access" = Option<String>, Query, description = "A signed link instead of a token (`hapax token link`)"),
        ("Last-Event-ID" = Option<String>, Header, description = "Where to go on; browsers send it by themselves"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream", description = "As of one job, but that the id is for all of them"),
        (status = 204, description = "Every job is closed, and everything was seen"),
    ),
)]
pub(crate) async fn stream(State(app): State<App>, call: Call) -> Answer {
    let (jobs, [last_event_id, _]) =
        call.list_and_parameters("job", ["last_event_id", "access"])?;
    let wrong = || {
        Problem::invalid(format!(
            "query parameter `job` takes `domain/job_id`, 1 to {MAX_JOBS} times, each job once"
        ))
    };
    let jobs = jobs.iter().map(|job| job.split_once('/').ok_or_else(wrong));
    let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
    if jobs.is_empty() || jobs.len() > MAX_JOBS {
        return Err(wrong());
    }
    sse::of_many(&app, &call, &jobs, last_event_id).await
}
