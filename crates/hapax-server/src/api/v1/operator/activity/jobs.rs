//! `/v1/operator/jobs`: jobs that had events lately, and the timeline of one.

use hapax::Key;
use hapax::activity::RecentJob;
use hapax::log::{LogEntry, PageRequest};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::{now, reader};
use crate::api::request::auth::AccessPolicy;
use crate::api::request::parse_query_number;
use crate::api::request::reveal::Reveal;
use crate::api::sse::signed_link::{LinkId, SignedLink};
use crate::api::sse::{FrameForm, follow_one};
use crate::api::v1::audit::{AuditSubject, audited};
use crate::api::v1::prelude::*;

/// Jobs that had events lately.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct RecentJobs {
    /// The jobs, newest first.
    pub(crate) jobs: Vec<ListedJob>,
}

/// A job that had an event lately.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ListedJob {
    /// The domain.
    pub(crate) domain: String,
    /// The id within the domain; null if it is masked.
    #[schema(required)]
    pub(crate) job_id: Option<String>,
    /// The stage of its last event.
    pub(crate) stage: String,
    /// When that was, in milliseconds since 1970.
    pub(crate) at: u64,
    /// Whether the id is hidden.
    pub(crate) masked: bool,
}

/// How many jobs are listed.
const MAX_JOBS: usize = 100;

/// List jobs that had events lately.
#[utoipa::path(
    get, path = "/v1/operator/jobs", operation_id = "list_jobs", tag = "operator",
    params(("reveal" = Option<bool>, Query, description = "Whether ids are shown; by default to `admin` tokens only. `true` is audited, and 403 for the scope `read`")),
    responses((status = 200, body = RecentJobs, description = "Up to 100 jobs, newest first; of busy nodes only some")),
)]
pub(crate) async fn list(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "jobs", request, |request, trail| async move {
        let [reveal] = request.query_parameters(["reveal"])?;
        let reveal = request.reveal(&app, reveal)?;
        trail.begin_reveal(reveal, AuditSubject::new("jobs")).await?;
        let reader = reader(&app);
        let recent = app.call_store(reader.recent_jobs(&request.tenant, MAX_JOBS)).await?;
        let listed = |RecentJob { domain, job_id, stage, at }| {
            let masked = reveal.is_masked();
            ListedJob { domain, job_id: reveal.show(job_id), stage, at, masked }
        };
        let jobs = recent.into_iter().map(listed).collect();
        Ok(json_response(StatusCode::OK, &RecentJobs { jobs }))
    })
    .await
}

/// The events of a job.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct JobTimeline {
    /// The epoch of the log.
    pub(crate) epoch: u64,
    /// The first offset that is still kept; events before it were trimmed.
    pub(crate) first: u64,
    /// The last offset.
    pub(crate) offset: u64,
    /// Whether the job has had its last event.
    pub(crate) closed: bool,
    /// The stage of the state: that of the event with the highest seq.
    #[schema(required)]
    pub(crate) stage: Option<String>,
    /// The seq of the state.
    #[schema(required)]
    pub(crate) seq: Option<u64>,
    /// How many clients follow the job at this node, consoles that show it included.
    pub(crate) followers: u64,
    /// Where readers get a gap.
    pub(crate) gaps: Vec<JobGap>,
    /// How long until the job is forgotten, unless it has another event.
    pub(crate) expires_in_ms: u64,
    /// The events, in order.
    pub(crate) events: Vec<TimelineEvent>,
    /// The `after` of the next page; null at the end.
    #[schema(required)]
    pub(crate) next: Option<String>,
    /// Whether the data of events is hidden.
    pub(crate) masked: bool,
    /// How a browser may follow the job: `open`, because the server has no tokens; `signed`, with a link of
    /// `POST …/link`; or `token`, only a client with a token of the scope `data`, because the server signs no links.
    pub(crate) access: String,
}

/// A place in a job's log where events are missing.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct JobGap {
    /// The first offset after the gap.
    pub(crate) before: u64,
    /// `trimmed`, or `lost` in a failover of the store.
    pub(crate) reason: String,
}

/// One event of a job.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct TimelineEvent {
    /// The offset in the log.
    pub(crate) offset: u64,
    /// The producer's stage.
    pub(crate) stage: String,
    /// The producer's number.
    pub(crate) seq: u64,
    /// When it was published (RFC 3339).
    #[schema(required)]
    pub(crate) timestamp: Option<String>,
    /// The data; null if it is masked.
    #[schema(required)]
    pub(crate) data: Option<Value>,
}

impl TimelineEvent {
    fn new(entry: &LogEntry, reveal: Reveal) -> Self {
        let mut event: Value = serde_json::from_slice(&entry.payload).unwrap_or_default();
        Self {
            offset: entry.at.offset,
            stage: entry.stage.to_string(),
            seq: entry.seq,
            timestamp: event["timestamp"].as_str().map(str::to_owned),
            data: reveal.show(event["data"].take()),
        }
    }
}

/// The most bytes of events on a page.
const MAX_PAGE_BYTES: usize = 1 << 20;

/// Show the events of a job.
#[utoipa::path(
    get, path = "/v1/operator/jobs/{domain}/{job_id}", operation_id = "show_timeline", tag = "operator",
    params(
        ("after" = Option<u64>, Query, description = "The offset before the first event; 0 by default"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The size of the page; 100 by default"),
        ("reveal" = Option<bool>, Query, description = "Whether the data of events is shown; by default to `admin` tokens only. `true` is audited, and 403 for the scope `read`"),
    ),
    responses(
        (status = 200, body = JobTimeline, description = "A page of its events; at most 1 MiB of them"),
        (status = 404, description = "`job-missing`: the job has no events, or none any more"),
    ),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "job", request, |request, trail| async move {
        let [after, limit, reveal] = request.query_parameters(["after", "limit", "reveal"])?;
        let reveal = request.reveal(&app, reveal)?;
        let number = |text| parse_query_number("after", text, 0..=hapax::log::MAX_NUMBER);
        let after = after.map(number).transpose()?.unwrap_or_default();
        let limit = parse_page_limit(limit)? as usize;
        let (domain, job_id) = (request.segment(1), request.segment(2));
        let job = Key::job(&request.tenant, domain, job_id)?;
        let subject = AuditSubject { key: Some(job_id.to_owned()), ..AuditSubject::new("job") };
        trail.begin_reveal(reveal, subject).await?;
        let page = PageRequest::new(after, limit).bytes(MAX_PAGE_BYTES).with_state();
        let attached = app.call_store(app.store.attach(&job, &page)).await?;
        let attached = attached.ok_or_else(|| {
            let text = "the job has no events, or none any more";
            Problem::new(ProblemKind::JobMissing, text)
        })?;
        let (head, entries) = (attached.head, attached.entries);
        let seen = entries.last().map_or(after.max(head.first - 1), |last| last.at.offset);
        let gap = |before, reason: &str| JobGap { before, reason: reason.to_owned() };
        let trimmed = (head.first > 1).then(|| gap(head.first, "trimmed"));
        // Every log begins with a place before which nothing is known.
        let loss = Some(head.epochs.last_loss()).filter(|loss| *loss > 1);
        let state = head.state.as_ref();
        let timeline = JobTimeline {
            epoch: head.epochs.last().0,
            first: head.first,
            offset: head.last,
            closed: head.closed,
            stage: state.map(|state| state.stage.to_string()),
            seq: state.map(|state| state.seq),
            followers: app.bus.followers(&job) as u64,
            gaps: trimmed.into_iter().chain(loss.map(|loss| gap(loss, "lost"))).collect(),
            expires_in_ms: hapax::millis(head.expires_in),
            events: entries.iter().map(|entry| TimelineEvent::new(entry, reveal)).collect(),
            next: (seen < head.last).then(|| seen.to_string()),
            masked: reveal.is_masked(),
            access: browser_access(&app).to_owned(),
        };
        Ok(json_response(StatusCode::OK, &timeline))
    })
    .await
}

fn browser_access(app: &AppState) -> &'static str {
    match (&app.access, &app.settings.sse_secret) {
        (AccessPolicy::LocalOnly(_), _) => "open",
        (AccessPolicy::Tokens(_), Some(_)) => "signed",
        (AccessPolicy::Tokens(_), None) => "token",
    }
}

/// Follow the events of a job, without their data.
#[utoipa::path(
    get, path = "/v1/operator/jobs/{domain}/{job_id}/events", operation_id = "follow_timeline", tag = "operator",
    params(
        ("last_event_id" = Option<String>, Query, description = "Where to resume: `<epoch>-<offset>`. `Last-Event-ID` takes precedence"),
        ("Last-Event-ID" = Option<String>, Header, description = "Where to resume; browsers send it on their own"),
    ),
    responses(
        (status = 200, body = String, content_type = "text/event-stream", description = "`id: <epoch>-<offset>` and `data:` with `offset`, `stage`, `seq`, `timestamp` and `final` of each event, without a name; `event: gap`, and then `event: snapshot`, if events are missing; ends after the last event"),
        (status = 204, description = "The job is closed, and the client has seen all events"),
    ),
)]
pub(crate) async fn follow(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let [last_event_id] = request.query_parameters(["last_event_id"])?;
    let job = (request.segment(1), request.segment(2));
    follow_one(&app, &request, job, last_event_id, None, FrameForm::Masked).await
}

/// A link with which a browser follows a job.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct JobLink {
    /// The path and query of the job's event stream, which needs no token.
    pub(crate) url: String,
    /// When the link expires, in milliseconds since 1970.
    pub(crate) expires_at: u64,
}

/// How long a link of an operator is valid, in seconds.
const LINK_SECONDS: u64 = 300;

/// Sign a link with which a browser follows the job for five minutes. It shows the data of events: the link is audited
/// as a reveal.
#[utoipa::path(
    post, path = "/v1/operator/jobs/{domain}/{job_id}/link", operation_id = "link_job", tag = "operator",
    responses(
        (status = 200, body = JobLink, description = "The link"),
        (status = 404, description = "`not-found`: this server signs no links (`--sse-secret`)"),
    ),
)]
pub(crate) async fn link(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "link", request, |request, trail| async move {
        request.expect_no_query()?;
        request.json_fields()?.finish()?;
        let reveal = request.reveal(&app, Some("true"))?;
        let (domain, job_id) = (request.segment(1), request.segment(2));
        // The key of a job that cannot exist is refused before anything is audited.
        Key::job(&request.tenant, domain, job_id)?;
        let Some(secret) = &app.settings.sse_secret else {
            let text = "this server signs no links; start it with `--sse-secret`";
            return Err(Problem::new(ProblemKind::NotFound, text));
        };
        let subject =
            AuditSubject { key: Some(job_id.to_owned()), ..AuditSubject::new("job-link") };
        trail.begin_reveal(reveal, subject).await?;
        let expires = now() / 1000 + LINK_SECONDS;
        let (jobs, tenant) =
            (vec![(domain.to_owned(), job_id.to_owned())], request.tenant.as_str());
        let link = SignedLink { tenant: tenant.to_owned(), jobs, expires, id: LinkId::default() };
        let part = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (domain, job_id, access) = (part(domain), part(job_id), link.sign(secret));
        let url = format!("/v1/jobs/{domain}/{job_id}/events?access={access}");
        Ok(json_response(StatusCode::OK, &JobLink { url, expires_at: expires * 1000 }))
    })
    .await
}
