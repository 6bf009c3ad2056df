//! `/v1/queues`: depths, and decisions about dead letters. As with `/v1/operator`, every action runs
//! to completion and is audited.

use std::time::{Duration, UNIX_EPOCH};

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::millis;
use hapax::queue::{DeadLetter, ItemId, QueueDepth, QueueName};
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::audit::{AuditEntry, run_to_completion};
use crate::serve::app::AppState;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::{ApiRequest, parse_query_number};
use crate::serve::response::{ApiResult, json_response};

/// How many dead letters a page has by default.
const DEFAULT_PAGE: u64 = 100;

/// The depth of a queue.
#[derive(Serialize, ToSchema)]
#[schema(as = QueueDepth)]
pub(crate) struct QueueDepthBody {
    /// Waiting items: due, not due yet, or behind another item of the same key.
    depth: u64,
    /// Leased items that are not done yet.
    in_flight: u64,
    /// Dead letters, which wait for an operator.
    dead: u64,
    /// The age of the oldest item that waits or is in flight; null if there is none.
    #[schema(required)]
    oldest_age_ms: Option<u64>,
}

impl QueueDepthBody {
    fn new(depth: QueueDepth) -> Self {
        let QueueDepth { waiting, in_flight, dead, oldest_age } = depth;
        Self { depth: waiting, in_flight, dead, oldest_age_ms: oldest_age.map(millis) }
    }
}

/// A page of dead letters.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadLetters {
    /// The dead letters.
    items: Vec<DeadLetterBody>,
    /// The `after` of the next page; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// One dead letter.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(crate) struct DeadLetterBody {
    /// The id of the item.
    id: String,
    /// The ordering key of the item, if it has one.
    #[schema(required)]
    key: Option<String>,
    /// How many attempts were made.
    attempts: u32,
    /// Why the item became a dead letter.
    reason: String,
    /// When the item became a dead letter (RFC 3339).
    at: String,
}

impl DeadLetterBody {
    fn new(dead: &DeadLetter) -> Self {
        let at = UNIX_EPOCH + Duration::from_millis(dead.at.0);
        Self {
            id: dead.id.to_string(),
            key: dead.key.as_deref().map(str::to_owned),
            attempts: dead.attempts,
            reason: dead.reason.to_string(),
            at: humantime::format_rfc3339_millis(at).to_string(),
        }
    }
}

/// Show the depth of a queue.
#[utoipa::path(
    get, path = "/v1/queues/{queue}", operation_id = "queue_depth", tag = "queues",
    params(("queue" = String, Path, min_length = 1, max_length = 255)),
    responses((status = 200, body = QueueDepthBody, description = "The depth for this tenant; an unused queue is empty")),
)]
pub(crate) async fn depth(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let audit = AuditEntry::new("depth", &request);
    run_to_completion(async move {
        let depth = async {
            request.expect_no_query()?;
            let queue = QueueName::new(request.segment(0))?;
            app.call_store(app.store.depth(&queue, Some(&request.tenant))).await
        };
        audit
            .record_outcome(depth.await)
            .map(|depth| json_response(StatusCode::OK, &QueueDepthBody::new(depth)))
    })
    .await
}

/// List dead letters.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/dead", operation_id = "dead_letters", tag = "queues",
    params(
        ("queue" = String, Path, min_length = 1, max_length = 255),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The size of the page; 100 by default"),
    ),
    responses((status = 200, body = DeadLetters, description = "A page, ordered by id")),
)]
pub(crate) async fn dead(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    let audit = AuditEntry::new("dead", &request);
    run_to_completion(async move {
        let page = async {
            let [after, limit] = request.query_parameters(["after", "limit"])?;
            let after =
                after.map(|after| parse_item_id("query parameter `after`", after)).transpose()?;
            let limit = limit
                .map_or(Ok(DEFAULT_PAGE), |text| parse_query_number("limit", text, 1..=1000))?;
            let queue = QueueName::new(request.segment(0))?;
            // One item more than is shown tells whether there is a next page.
            let at_most = u32::try_from(limit + 1).expect("at most 1001");
            let found = app.store.dead(&queue, Some(&request.tenant), after, at_most);
            let found = app.call_store(found).await?;
            let limit = usize::try_from(limit).expect("at most 1000");
            let next = (found.len() > limit).then(|| found[limit - 1].id.to_string());
            let items = found.iter().take(limit).map(DeadLetterBody::new).collect();
            Ok(DeadLetters { items, next })
        };
        audit.record_outcome(page.await).map(|page| json_response(StatusCode::OK, &page))
    })
    .await
}

/// Requeue a dead letter: it waits again in its old place, with its attempts reset.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dead/{id}/requeue", operation_id = "requeue_dead_letter", tag = "queues",
    params(("queue" = String, Path, min_length = 1, max_length = 255), ("id" = String, Path)),
    responses(
        (status = 204, description = "The item waits again; later items of its key wait behind it"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`dead-letter-missing`"),
    ),
)]
pub(crate) async fn requeue(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    decide(app, request, DeadLetterAction::Requeue).await
}

/// Discard a dead letter: later items of its key continue.
#[utoipa::path(
    delete, path = "/v1/queues/{queue}/dead/{id}", operation_id = "discard_dead_letter", tag = "queues",
    params(("queue" = String, Path, min_length = 1, max_length = 255), ("id" = String, Path)),
    responses(
        (status = 204, description = "The dead letter is deleted"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`dead-letter-missing`"),
    ),
)]
pub(crate) async fn discard(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    decide(app, request, DeadLetterAction::Discard).await
}

#[derive(Clone, Copy)]
enum DeadLetterAction {
    Requeue,
    Discard,
}

async fn decide(app: AppState, request: ApiRequest, action: DeadLetterAction) -> ApiResult {
    let name = match action {
        DeadLetterAction::Requeue => "requeue",
        DeadLetterAction::Discard => "discard",
    };
    let mut audit = AuditEntry::new(name, &request);
    run_to_completion(async move {
        let decided = async {
            request.expect_no_query()?;
            request.json_fields()?.finish()?;
            let (queue, tenant) = (QueueName::new(request.segment(0))?, Some(&request.tenant));
            let id = parse_item_id("id", request.segment(2))?;
            audit.item = Some(id);
            let done = match action {
                DeadLetterAction::Requeue => app.store.requeue(&queue, tenant, id),
                DeadLetterAction::Discard => app.store.discard(&queue, tenant, id),
            };
            let found = app.call_store(done).await?;
            if found { Ok(()) } else { Err(dead_letter_missing()) }
        };
        let decided = decided.await;
        audit.record_outcome(decided).map(|()| StatusCode::NO_CONTENT.into_response())
    })
    .await
}

fn parse_item_id(name: &str, text: &str) -> Result<ItemId, Problem> {
    let id = Uuid::try_parse(text).map(ItemId);
    id.map_err(|_| Problem::invalid(format!("{name} takes a UUID")))
}

fn dead_letter_missing() -> Problem {
    Problem::new(
        ProblemKind::DeadLetterMissing,
        "the queue has no such dead letter, or no longer has it",
    )
}
