//! `/v1/queues`: depths, and decisions about dead letters. As with `/v1/operator`, every action runs
//! to completion and is audited.

use std::time::{Duration, UNIX_EPOCH};

use hapax::millis;
use hapax::queue::{DeadLetter, ItemId, QueueDepth, QueueName};
use uuid::Uuid;

use super::audit::{AuditSubject, audited};
use super::prelude::*;

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
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadLetters {
    /// The dead letters.
    pub(crate) items: Vec<DeadLetterBody>,
    /// The `after` of the next page; null at the end.
    #[schema(required)]
    pub(crate) next: Option<String>,
}

/// One dead letter.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(crate) struct DeadLetterBody {
    /// The id of the item.
    pub(crate) id: String,
    /// The ordering key of the item, if it has one.
    #[schema(required)]
    pub(crate) key: Option<String>,
    /// How many attempts were made.
    pub(crate) attempts: u32,
    /// Why the item became a dead letter.
    pub(crate) reason: String,
    /// When the item became a dead letter (RFC 3339).
    pub(crate) at: String,
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
    responses((status = 200, body = QueueDepthBody, description = "The depth for this tenant; an unused queue is empty")),
)]
pub(crate) async fn depth(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited("depth", request, |request, _| async move {
        request.expect_no_query()?;
        let queue = QueueName::new(request.segment(0))?;
        let depth = app.call_store(app.store.depth(&queue, Some(&request.tenant))).await?;
        Ok(json_response(StatusCode::OK, &QueueDepthBody::new(depth)))
    })
    .await
}

/// List dead letters.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/dead", operation_id = "dead_letters", tag = "queues",
    params(
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The size of the page; 100 by default"),
    ),
    responses((status = 200, body = DeadLetters, description = "A page, ordered by id")),
)]
pub(crate) async fn dead(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited("dead", request, |request, _| async move {
        let [after, limit] = request.query_parameters(["after", "limit"])?;
        let after =
            after.map(|after| parse_item_id("query parameter `after`", after)).transpose()?;
        let limit = parse_page_limit(limit)?;
        let queue = QueueName::new(request.segment(0))?;
        // One item more than is shown tells whether there is a next page.
        let dead = app.store.dead(&queue, Some(&request.tenant), after, limit + 1);
        let (found, limit) = (app.call_store(dead).await?, limit as usize);
        let next = (found.len() > limit).then(|| found[limit - 1].id.to_string());
        let items = found.iter().take(limit).map(DeadLetterBody::new).collect();
        Ok(json_response(StatusCode::OK, &DeadLetters { items, next }))
    })
    .await
}

/// Requeue a dead letter: it waits again in its old place, with its attempts reset.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dead/{id}/requeue", operation_id = "requeue_dead_letter", tag = "queues",
    responses(
        (status = 204, description = "The item waits again; later items of its key wait behind it"),
        (status = 404, description = "`dead-letter-missing`"),
    ),
)]
pub(crate) async fn requeue(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited("requeue", request, |request, subject| async move {
        let (queue, id) = parse_dead_letter(&request, &subject)?;
        decided(app.call_store(app.store.requeue(&queue, Some(&request.tenant), id)).await?)
    })
    .await
}

/// Discard a dead letter: later items of its key continue.
#[utoipa::path(
    delete, path = "/v1/queues/{queue}/dead/{id}", operation_id = "discard_dead_letter", tag = "queues",
    responses(
        (status = 204, description = "The dead letter is deleted"),
        (status = 404, description = "`dead-letter-missing`"),
    ),
)]
pub(crate) async fn discard(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited("discard", request, |request, subject| async move {
        let (queue, id) = parse_dead_letter(&request, &subject)?;
        decided(app.call_store(app.store.discard(&queue, Some(&request.tenant), id)).await?)
    })
    .await
}

fn parse_dead_letter(
    request: &ApiRequest,
    subject: &AuditSubject,
) -> Result<(QueueName, ItemId), Problem> {
    request.expect_no_query()?;
    request.json_fields()?.finish()?;
    let queue = QueueName::new(request.segment(0))?;
    let id = parse_item_id("id", request.segment(2))?;
    let _ = subject.item.set(id);
    Ok((queue, id))
}

fn parse_item_id(name: &str, text: &str) -> Result<ItemId, Problem> {
    let id = Uuid::try_parse(text).map(ItemId);
    id.map_err(|_| Problem::invalid(format!("{name} takes a UUID")))
}

fn decided(found: bool) -> ApiResult {
    let text = "the queue has no such dead letter, or no longer has it";
    if found { Ok(no_content()) } else { Err(Problem::new(ProblemKind::DeadLetterMissing, text)) }
}
