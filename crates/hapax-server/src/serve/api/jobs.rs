//! `/v1/jobs`

use axum::extract::State;
use hapax::bus::with_offset;
use hyper::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::Call;
use crate::serve::response::{Answer, json};
use crate::serve::sse;

/// How a job stands.
#[derive(Serialize, ToSchema)]
pub(crate) struct JobState {
    /// The event with the highest seq.
    #[schema(value_type = EventInLog)]
    state: Box<RawValue>,
    /// The last offset of its log.
    offset: u64,
    /// Which life of the log that is.
    epoch: u64,
    /// Whether it has had its last event.
    closed: bool,
}

/// An event as readers get it.
#[derive(ToSchema)]
#[expect(dead_code, reason = "this is what the documentation shows")]
pub(crate) struct EventInLog {
    offset: u64,
    domain: String,
    job_id: String,
    stage: String,
    seq: u64,
    data: serde_json::Value,
    /// There, and true, where its producer said so.
    #[schema(nullable = false)]
    r#final: Option<bool>,
    timestamp: String,
}

/// Look at a job.
#[utoipa::path(
    get, path = "/v1/jobs/{domain}/{job_id}", operation_id = "look_at_job", tag = "events",
    params(
        ("domain" = String, Path, min_length = 1, max_length = 255),
        ("job_id" = String, Path, min_length = 1, max_length = 255),
        ("access" = Option<String>, Query, description = "A signed link instead of a token (`hapax token link`)"),
    ),
    responses(
        (status = 200, body = JobState, description = "Its latest state"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`job-missing`: it has no events, or none any more"),
    ),
)]
pub(crate) async fn look(State(app): State<App>, call: Call) -> Answer {
    call.parameters(["access"])?;
    let (domain, job_id) = (call.segment(0), call.segment(1));
    call.may_see(domain, job_id)?;
    let bus = app.bus.clone().tenant(call.tenant.clone());
    let head = app.ask(std::time::Duration::ZERO, bus.state(domain, job_id)).await?;
    let Some(head) = head else {
        return Err(Problem::new(ProblemKind::JobMissing, "it has no events, or none any more"));
    };
    let state = RawValue::from_string(with_offset(&head.state))
        .map_err(|_| Problem::new(ProblemKind::Internal, "the stored event cannot be read"))?;
    let epoch = head.epochs.at(head.last).unwrap_or(head.epochs.last()).0;
    let job = JobState { state, offset: head.last, epoch, closed: head.closed };
    Ok(json(StatusCode::OK, &job))
}

/// Follow a job.
#[utoipa::path(
    get, path = "/v1/jobs/{domain}/{job_id}/events", operation_id = "follow_job", tag = "events",
    params(
        ("domain" = String, Path, min_length = 1, max_length = 255),
        ("job_id" = String, Path, min_length = 1, max_length = 255),
        ("last_event_id" = Option<String>, Query, description = "Where to go on: the id of the last event, `<epoch>-<offset>`. `Last-Event-ID` wins over it"),
        ("last_seq" = Option<u64>, Query, description = "Where to go on: behind the event with the highest seq up to this one; at least once"),
        ("access" = Option<String>, Query, description = "A signed link instead of a token (`hapax token link`)"),
        ("Last-Event-ID" = Option<String>, Header, description = "Where to go on; browsers send it by themselves"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream", description = "`id: <epoch>-<offset>`, `event: <stage>`, `data:` the event; `gap` and then `snapshot` where the place to go on is gone; ends after the last event"),
        (status = 204, description = "The job is closed, and everything was seen"),
    ),
)]
pub(crate) async fn events(State(app): State<App>, call: Call) -> Answer {
    let [last_event_id, last_seq, _] = call.parameters(["last_event_id", "last_seq", "access"])?;
    sse::of_one(&app, &call, (call.segment(0), call.segment(1)), last_event_id, last_seq).await
}
