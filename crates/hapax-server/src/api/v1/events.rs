//! `/v1/events` and `/v1/jobs`

use super::prelude::*;
use crate::api::sse;
use crate::problem::{Problem, ProblemDocument, ProblemKind};
use hapax::bus::{MAX_JOBS, NewEvent, with_offset};
use hapax::log::{Appended, MAX_APPEND, MAX_NUMBER};
use serde_json::Value;
use serde_json::value::RawValue;

/// An event to publish. Domain, job, stage and seq identify it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct PublishEvent {
    /// The kind of job.
    #[schema(min_length = 1, max_length = 255, example = "scan")]
    domain: String,
    /// The id of the job.
    #[schema(min_length = 1, max_length = 255, example = "job-1")]
    job_id: String,
    /// The stage of the job; not `gap`, `snapshot`, `end`, `error`, `open` or `message`.
    #[schema(min_length = 1, max_length = 255, example = "vision")]
    stage: String,
    /// The producer's own number; the event with the highest one is the job's state.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_u64, example = 10)]
    seq: u64,
    /// The content of the event.
    data: Value,
    /// Whether the event is the job's last one. Stage `done` at seq 51 always is.
    #[serde(rename = "final")]
    #[schema(default = false, nullable = false)]
    closes: Option<bool>,
    /// When the event happened, in the producer's own format; now by default. Never compared.
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

/// The result of publishing an event.
#[derive(Serialize, ToSchema)]
pub(crate) struct PublishedEvent {
    /// Whether this request published the event; false for a duplicate.
    published: bool,
    /// The event's offset in the log of its job.
    offset: u64,
    /// The epoch of the log.
    epoch: u64,
}

/// The result of each event, in order.
#[derive(Serialize, ToSchema)]
pub(crate) struct PublishedEvents {
    results: Vec<PublishResult>,
}

/// The result of one event that was published before, or of several events.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "this is what the documentation shows")]
pub(crate) enum PublishedBefore {
    One(PublishedEvent),
    Many(PublishedEvents),
}

/// The result of one of several events.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum PublishResult {
    /// 201 for a published event, 200 for a duplicate.
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
        (status = 201, body = PublishedEvent, description = "The event is in the log"),
        (status = 200, body = PublishedBefore, description = "The event was in the log before, with the same content (`published` is false); for an array, the results in order, each with its own `status`"),
        (status = 409, description = "`event-conflict`: the same identity with different content; `job-closed`"),
    ),
)]
pub(crate) async fn publish(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let body = request.json_value()?;
    let bus = app.bus.clone().tenant(request.tenant.clone());
    let Value::Array(items) = body else {
        let (status, event) = published(app.call_store(bus.publish(&parse_event(body)?)).await?)?;
        return Ok(json_response(status, &event));
    };
    if items.len() > MAX_APPEND {
        let text = format!("an array takes up to {MAX_APPEND} events; send several arrays");
        return Err(Problem::invalid(text));
    }
    let item = |(i, item)| {
        parse_event(item).map_err(|problem| problem.prefix_detail(&format!("item {i}: ")))
    };
    let events = items.into_iter().enumerate().map(item).collect::<Result<Vec<_>, _>>()?;
    let appended = app.call_store(bus.publish_all(&events)).await?;
    let results = appended.into_iter().map(|appended| match published(appended) {
        Ok((status, event)) => PublishResult::Done { status: status.as_u16(), event },
        Err(problem) => PublishResult::Refused(problem.into()),
    });
    Ok(json_response(StatusCode::OK, &PublishedEvents { results: results.collect() }))
}

fn parse_event(item: Value) -> Result<NewEvent, Problem> {
    let mut fields = JsonFields::from_value(item, "an event must be a JSON object")?;
    let mut text = |name: &str| required(name, fields.text(name)?);
    let (domain, job_id, stage) = (text("domain")?, text("job_id")?, text("stage")?);
    let seq = required("seq", fields.number("seq", 0..=MAX_NUMBER)?)?;
    let event = NewEvent {
        data: required("data", fields.value("data"))?,
        closes: fields.flag("final")?.unwrap_or_default(),
        timestamp: fields.text("timestamp")?,
        ..NewEvent::new(domain, job_id, stage, seq)
    };
    fields.finish()?;
    Ok(event)
}

/// The status and body for an event that is in the log, or the problem of one that was refused.
fn published(appended: Appended) -> Result<(StatusCode, PublishedEvent), Problem> {
    let (status, at) = match appended {
        Appended::Published(at) => (StatusCode::CREATED, at),
        Appended::Duplicate(at) => (StatusCode::OK, at),
        Appended::Conflict => {
            let text = "the log has an event with this stage and seq and different content";
            return Err(Problem::new(ProblemKind::EventConflict, text));
        }
        Appended::Closed => {
            return Err(Problem::new(ProblemKind::JobClosed, "the job has had its last event"));
        }
    };
    let published = status == StatusCode::CREATED;
    Ok((status, PublishedEvent { published, offset: at.offset, epoch: at.epoch.0 }))
}

/// Follow several jobs on one connection.
#[utoipa::path(
    get, path = "/v1/events/stream", operation_id = "follow_jobs", tag = "events",
    params(
        ("job" = Vec<String>, Query, description = "`domain/job_id`, once for each job; up to 32", example = json!(["scan/job-1", "scan/job-2"])),
        ("last_event_id" = Option<String>, Query, description = "Where to resume: the id of the last event, which covers all the jobs. `Last-Event-ID` takes precedence"),
        ("event" = Option<String>, Query, description = "`message` leaves out the `event:` line of each frame, so that a browser calls `onmessage`"),
        ("access" = Option<String>, Query, description = "A signed link instead of a token (`hapax token link`)"),
        ("Last-Event-ID" = Option<String>, Header, description = "Where to resume; browsers send it on their own"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream", description = "Like the stream of one job, but each id covers all jobs"),
        (status = 204, description = "Every job is closed, and the client has seen all events"),
    ),
)]
pub(crate) async fn follow_jobs(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let (jobs, [last_event_id, event, _]) =
        request.query_list_and_parameters("job", ["last_event_id", "event", "access"])?;
    let form = frame_form(event)?;
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
    sse::follow_many(&app, &request, &jobs, last_event_id, form).await
}

/// Whether frames are named, by the query parameter `event`.
fn frame_form(event: Option<&str>) -> Result<sse::FrameForm, Problem> {
    match event {
        None => Ok(sse::FrameForm::Named),
        Some("message") => Ok(sse::FrameForm::Unnamed),
        Some(_) => Err(Problem::invalid(
            "query parameter `event` takes only `message`; without it frames are named by their stage",
        )),
    }
}

/// The state of a job.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobState {
    /// The event with the highest seq.
    #[schema(value_type = EventInLog)]
    state: Box<RawValue>,
    /// The last offset of the log.
    offset: u64,
    /// The epoch of the log.
    epoch: u64,
    /// Whether the job has had its last event.
    closed: bool,
}

/// An event of the log.
#[derive(ToSchema)]
#[expect(dead_code, reason = "this is what the documentation shows")]
pub(crate) struct EventInLog {
    offset: u64,
    domain: String,
    job_id: String,
    stage: String,
    seq: u64,
    data: serde_json::Value,
    /// Present, and true, if the producer set it.
    #[schema(nullable = false)]
    r#final: Option<bool>,
    timestamp: String,
}

/// Show a job.
#[utoipa::path(
    get, path = "/v1/jobs/{domain}/{job_id}", operation_id = "look_at_job", tag = "events",
    params(
        ("access" = Option<String>, Query, description = "A signed link instead of a token (`hapax token link`)"),
    ),
    responses(
        (status = 200, body = JobState, description = "The latest state of the job"),
        (status = 404, description = "`job-missing`: the job has no events, or none any more"),
    ),
)]
pub(crate) async fn show_job(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.query_parameters(["access"])?;
    let (domain, job_id) = (request.segment(0), request.segment(1));
    request.check_link_covers(domain, job_id)?;
    let bus = app.bus.clone().tenant(request.tenant.clone());
    let head = app.call_store(bus.state(domain, job_id)).await?;
    let Some((head, state)) =
        head.and_then(|mut head| head.state.take().map(|state| (head, state)))
    else {
        let text = "the job has no events, or none any more";
        return Err(Problem::new(ProblemKind::JobMissing, text));
    };
    let state = RawValue::from_string(with_offset(&state))
        .map_err(|_| Problem::new(ProblemKind::Internal, "the stored event cannot be parsed"))?;
    let (offset, epoch) = (head.last, head.epochs.last().0);
    let job = JobState { state, offset, epoch, closed: head.closed };
    Ok(json_response(StatusCode::OK, &job))
}

/// Follow a job.
#[utoipa::path(
    get, path = "/v1/jobs/{domain}/{job_id}/events", operation_id = "follow_job", tag = "events",
    params(
        ("last_event_id" = Option<String>, Query, description = "Where to resume: the id of the last event, `<epoch>-<offset>`. `Last-Event-ID` takes precedence"),
        ("last_seq" = Option<u64>, Query, description = "Where to resume: after the event with the highest seq up to this one; events may be repeated"),
        ("event" = Option<String>, Query, description = "`message` leaves out the `event:` line of each frame, so that a browser calls `onmessage`"),
        ("access" = Option<String>, Query, description = "A signed link instead of a token (`hapax token link`)"),
        ("Last-Event-ID" = Option<String>, Header, description = "Where to resume; browsers send it on their own"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream", description = "`id: <epoch>-<offset>`, `event: <stage>`, `data:` the event; `gap` and then `snapshot` if the cursor is gone, `gap` with `\"to\": null` alone if the job is forgotten; ends after the last event"),
        (status = 204, description = "The job is closed, and the client has seen all events"),
    ),
)]
pub(crate) async fn follow_job(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let [last_event_id, last_seq, event, _] =
        request.query_parameters(["last_event_id", "last_seq", "event", "access"])?;
    let (job, form) = ((request.segment(0), request.segment(1)), frame_form(event)?);
    sse::follow_one(&app, &request, job, last_event_id, last_seq, form).await
}
