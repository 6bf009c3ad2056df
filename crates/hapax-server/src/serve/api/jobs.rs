//! `/v1/jobs`

use axum::extract::State;
use hapax::bus::with_offset;
use hyper::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::serve::app::AppState;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::ApiRequest;
use crate::serve::response::{ApiResult, json_response};
use crate::serve::sse;

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
        ("domain" = String, Path, min_length = 1, max_length = 255),
        ("job_id" = String, Path, min_length = 1, max_length = 255),
        ("access" = Option<String>, Query, description = "A signed link instead of a token (`hapax token link`)"),
    ),
    responses(
        (status = 200, body = JobState, description = "The latest state of the job"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`job-missing`: the job has no events, or none any more"),
    ),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.query_parameters(["access"])?;
    let (domain, job_id) = (request.segment(0), request.segment(1));
    request.check_link_covers(domain, job_id)?;
    let bus = app.bus.clone().tenant(request.tenant.clone());
    let head = app.call_store(bus.state(domain, job_id)).await?;
    let Some(head) = head else {
        return Err(Problem::new(
            ProblemKind::JobMissing,
            "the job has no events, or none any more",
        ));
    };
    let state = RawValue::from_string(with_offset(&head.state))
        .map_err(|_| Problem::new(ProblemKind::Internal, "the stored event cannot be parsed"))?;
    let epoch = head.epochs.at(head.last).unwrap_or(head.epochs.last()).0;
    let job = JobState { state, offset: head.last, epoch, closed: head.closed };
    Ok(json_response(StatusCode::OK, &job))
}

/// Follow a job.
#[utoipa::path(
    get, path = "/v1/jobs/{domain}/{job_id}/events", operation_id = "follow_job", tag = "events",
    params(
        ("domain" = String, Path, min_length = 1, max_length = 255),
        ("job_id" = String, Path, min_length = 1, max_length = 255),
        ("last_event_id" = Option<String>, Query, description = "Where to resume: the id of the last event, `<epoch>-<offset>`. `Last-Event-ID` takes precedence"),
        ("last_seq" = Option<u64>, Query, description = "Where to resume: after the event with the highest seq up to this one; events may be repeated"),
        ("access" = Option<String>, Query, description = "A signed link instead of a token (`hapax token link`)"),
        ("Last-Event-ID" = Option<String>, Header, description = "Where to resume; browsers send it on their own"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream", description = "`id: <epoch>-<offset>`, `event: <stage>`, `data:` the event; `gap` and then `snapshot` if the cursor is gone; ends after the last event"),
        (status = 204, description = "The job is closed, and the client has seen all events"),
    ),
)]
pub(crate) async fn follow(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let [last_event_id, last_seq, _] =
        request.query_parameters(["last_event_id", "last_seq", "access"])?;
    sse::follow_one(
        &app,
        &request,
        (request.segment(0), request.segment(1)),
        last_event_id,
        last_seq,
    )
    .await
}
