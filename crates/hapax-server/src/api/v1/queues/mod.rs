//! `/v1/queues`: depths, and decisions about dead letters. As with `/v1/operator`, every action runs
//! to completion and is audited.

pub(crate) mod bulk;
pub(crate) mod pause;
pub(crate) mod reasons;

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hapax::queue::{DeadLetter, DeadQuery, ItemId, QueueDepth, QueueItem, QueueName};
use hapax::{StoreError, Tenant, Timestamp, millis};
use uuid::Uuid;

pub(crate) use reasons::{DeadReasonBody, DeadReasons};

use super::audit::{AuditSubject, AuditTrail, audited};
use super::prelude::*;
use crate::api::request::reveal::Reveal;

/// The depth of a queue.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = QueueDepth)]
pub(crate) struct QueueDepthBody {
    /// Waiting items: due, not due yet, or behind another item of the same key. In a queue of more than
    /// 100,000 items SQLite and PostgreSQL estimate it.
    pub(crate) depth: u64,
    /// Leased items that are not done yet.
    pub(crate) in_flight: u64,
    /// Dead letters, which wait for an operator.
    pub(crate) dead: u64,
    /// The age of the oldest item that waits or is in flight; null if there is none.
    #[schema(required)]
    pub(crate) oldest_age_ms: Option<u64>,
}

impl QueueDepthBody {
    pub(super) fn new(depth: QueueDepth) -> Self {
        let QueueDepth { waiting, in_flight, dead, oldest_age } = depth;
        Self { depth: waiting, in_flight, dead, oldest_age_ms: oldest_age.map(millis) }
    }
}

/// Every queue and its depth.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct QueueList {
    /// The queues.
    pub(crate) queues: Vec<ListedQueue>,
}

/// One queue of a list.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ListedQueue {
    /// The name of the queue.
    pub(crate) queue: String,
    #[serde(flatten)]
    pub(crate) depth: QueueDepthBody,
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
    /// The topic of the item.
    pub(crate) topic: String,
    /// The ordering key of the item; null if it has none, or it is masked.
    #[schema(required)]
    pub(crate) key: Option<String>,
    /// How many attempts were made.
    pub(crate) attempts: u32,
    /// Why the item became a dead letter.
    pub(crate) reason: String,
    /// The reasons of its last failures, at most ten, oldest first; the last one is `reason`.
    #[serde(default)]
    #[schema(required)]
    pub(crate) errors: Vec<String>,
    /// When the item became a dead letter (RFC 3339).
    pub(crate) at: String,
    /// The payload, if it was asked for and is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) payload: Option<String>,
    /// The payload in base64, if it was asked for and is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) payload_base64: Option<String>,
    /// The headers, if the payload was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) headers: Option<BTreeMap<String, String>>,
    /// Whether key, payload and headers are hidden.
    #[serde(default)]
    pub(crate) masked: bool,
}

impl DeadLetterBody {
    fn new(dead: &DeadLetter, reveal: Reveal) -> Self {
        Self {
            id: dead.id.to_string(),
            topic: dead.topic.to_string(),
            key: dead.key.as_deref().and_then(|key| reveal.show(key.to_owned())),
            attempts: dead.attempts,
            reason: dead.reason.to_string(),
            errors: dead.errors.iter().map(ToString::to_string).collect(),
            at: rfc3339(dead.at),
            payload: None,
            payload_base64: None,
            headers: None,
            masked: reveal.is_masked(),
        }
    }

    fn add_payload(&mut self, item: QueueItem) {
        match String::from_utf8(item.payload.into()) {
            Ok(text) => self.payload = Some(text),
            Err(other) => self.payload_base64 = Some(BASE64_STANDARD.encode(other.as_bytes())),
        }
        self.headers = Some(item.headers);
    }
}

fn rfc3339(at: Timestamp) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(at.0)).to_string()
}

/// How many bytes of payloads one page shows; the rest is on the next page.
const MAX_PAYLOADS: usize = 1 << 20;

/// List the queues.
#[utoipa::path(
    get, path = "/v1/queues", operation_id = "list_queues", tag = "queues",
    responses((status = 200, body = QueueList, description = "Every queue of the store, with its depth for this tenant")),
)]
pub(crate) async fn list(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "queues", request, |request, _| async move {
        request.expect_no_query()?;
        let listing = async {
            let mut queues = Vec::new();
            for name in app.store.queues().await? {
                let depth = app.store.depth(&name, Some(&request.tenant)).await?;
                let queue = name.as_str().to_owned();
                queues.push(ListedQueue { queue, depth: QueueDepthBody::new(depth) });
            }
            Ok::<_, StoreError>(queues)
        };
        let queues = app.call_store(listing).await?;
        Ok(json_response(StatusCode::OK, &QueueList { queues }))
    })
    .await
}

/// Show the depth of a queue.
#[utoipa::path(
    get, path = "/v1/queues/{queue}", operation_id = "queue_depth", tag = "queues",
    responses((status = 200, body = QueueDepthBody, description = "The depth for this tenant; an unused queue is empty")),
)]
pub(crate) async fn depth(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "depth", request, |request, _| async move {
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
        ("reason" = Option<String>, Query, description = "Only dead letters with this newest reason"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The size of the page; 100 by default"),
        ("payload" = Option<bool>, Query, description = "Whether payload and headers are shown; then a page ends after 1 MiB of payloads"),
        ("reveal" = Option<bool>, Query, description = "Whether keys, payloads and answers are shown; by default to `admin` tokens only. `true` is audited, and 403 for the scope `read`"),
    ),
    responses((status = 200, body = DeadLetters, description = "A page, ordered by id")),
)]
pub(crate) async fn dead(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "dead", request, |request, trail| async move {
        let [reason, after, limit, payload, reveal] =
            request.query_parameters(["reason", "after", "limit", "payload", "reveal"])?;
        let reveal = request.reveal(&app, reveal)?;
        let with_payload = match payload {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                return Err(Problem::invalid("query parameter `payload` takes true or false"));
            }
        };
        let after =
            after.map(|after| parse_item_id("query parameter `after`", after)).transpose()?;
        let limit = parse_page_limit(limit)?;
        let queue = QueueName::new(request.segment(0))?;
        let subject = AuditSubject::of_queue("dead-letters", queue.as_str());
        trail.begin_reveal(reveal, subject).await?;
        // One item more than is shown tells whether there is a next page.
        let query = DeadQuery::new(limit + 1).after(after).reason(reason.map(Into::into));
        let dead = app.store.dead(&queue, Some(&request.tenant), &query);
        let (found, limit) = (app.call_store(dead).await?, limit as usize);
        let shown = found.iter().take(limit).map(|dead| DeadLetterBody::new(dead, reveal));
        let mut items: Vec<_> = shown.collect();
        if with_payload && !reveal.is_masked() {
            let tenant = Some(&request.tenant);
            let shown = app.call_store(add_payloads(&app, &queue, tenant, &found, &mut items));
            let shown = shown.await?;
            items.truncate(shown);
        }
        let next = (found.len() > items.len()).then(|| items.last().map(|last| last.id.clone()));
        Ok(json_response(StatusCode::OK, &DeadLetters { items, next: next.flatten() }))
    })
    .await
}

/// Adds payloads up to [`MAX_PAYLOADS`], and to one item at least. Returns how many items have theirs.
async fn add_payloads(
    app: &AppState,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    found: &[DeadLetter],
    items: &mut [DeadLetterBody],
) -> Result<usize, StoreError> {
    let (mut shown, mut bytes) = (0, 0);
    for (dead, body) in found.iter().zip(items) {
        // An item that was requeued meanwhile is shown without its payload.
        if let Some(item) = app.store.dead_item(queue, tenant, dead.id).await? {
            bytes += item.payload.len();
            if shown > 0 && bytes > MAX_PAYLOADS {
                break;
            }
            body.add_payload(item);
        }
        shown += 1;
    }
    Ok(shown)
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
    audited(app.clone(), "requeue", request, |request, trail| async move {
        let (queue, id) = parse_dead_letter(&request, &trail)?;
        trail.begin("requeue", dead_letter_subject(&queue, id)).await?;
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
    audited(app.clone(), "discard", request, |request, trail| async move {
        let (queue, id) = parse_dead_letter(&request, &trail)?;
        trail.begin("discard", dead_letter_subject(&queue, id)).await?;
        decided(app.call_store(app.store.discard(&queue, Some(&request.tenant), id)).await?)
    })
    .await
}

fn parse_dead_letter(
    request: &ApiRequest,
    trail: &AuditTrail,
) -> Result<(QueueName, ItemId), Problem> {
    request.expect_no_query()?;
    request.json_fields()?.finish()?;
    let queue = QueueName::new(request.segment(0))?;
    let id = parse_item_id("id", request.segment(2))?;
    trail.set_item(id);
    Ok((queue, id))
}

fn dead_letter_subject(queue: &QueueName, id: ItemId) -> AuditSubject {
    let item = Some(id.to_string());
    AuditSubject { item, ..AuditSubject::of_queue("dead-letter", queue.as_str()) }
}

fn parse_item_id(name: &str, text: &str) -> Result<ItemId, Problem> {
    let id = Uuid::try_parse(text).map(ItemId);
    id.map_err(|_| Problem::invalid(format!("{name} takes a UUID")))
}

fn decided(found: bool) -> ApiResult {
    let text = "the queue has no such dead letter, or no longer has it";
    if found { Ok(no_content()) } else { Err(Problem::new(ProblemKind::DeadLetterMissing, text)) }
}
