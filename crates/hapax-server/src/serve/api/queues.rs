//! `/v1/queues`: how much waits, and what is decided about dead letters. As with `/v1/operator`,
//! every action runs to its end and is written down.

use std::time::{Duration, UNIX_EPOCH};

use axum::extract::State;
use axum::response::IntoResponse;
use hapax::millis;
use hapax::queue::{Dead, Depth, ItemId, QueueName};
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::audit::{Audit, to_its_end};
use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemDocument, ProblemKind};
use crate::serve::request::{Call, number};
use crate::serve::response::{Answer, json};

/// How many dead letters are on a page where the call does not say.
const PAGE: u64 = 100;

/// How much is in a queue.
#[derive(Serialize, ToSchema)]
pub(crate) struct QueueDepth {
    /// Waiting: due, not due yet, or behind another one of its key.
    depth: u64,
    /// Handed out, and not done yet.
    in_flight: u64,
    /// Dead letters, which wait for an operator.
    dead: u64,
    /// How long ago the oldest one that waits or is in flight was enqueued; null where none is.
    #[schema(required)]
    oldest_age_ms: Option<u64>,
}

impl QueueDepth {
    fn new(depth: Depth) -> Self {
        let Depth { waiting, in_flight, dead, oldest_age } = depth;
        Self { depth: waiting, in_flight, dead, oldest_age_ms: oldest_age.map(millis) }
    }
}

/// Some dead letters, and where to go on.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadLetters {
    /// The dead letters.
    items: Vec<DeadLetter>,
    /// What to pass as `after`; null at the end.
    #[schema(required)]
    next: Option<String>,
}

/// One dead letter.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeadLetter {
    /// Which item.
    id: String,
    /// Its ordering key, where it has one.
    #[schema(required)]
    key: Option<String>,
    /// How many times it was tried.
    attempts: u32,
    /// Why it was given up.
    reason: String,
    /// When (RFC 3339).
    at: String,
}

impl DeadLetter {
    fn new(dead: &Dead) -> Self {
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

/// How much is in a queue.
#[utoipa::path(
    get, path = "/v1/queues/{queue}", operation_id = "queue_depth", tag = "queues",
    params(("queue" = String, Path, min_length = 1, max_length = 255)),
    responses((status = 200, body = QueueDepth, description = "Of this tenant; a queue that nobody has used is empty")),
)]
pub(crate) async fn depth(State(app): State<App>, call: Call) -> Answer {
    let audit = Audit::new("depth", &call);
    to_its_end(async move {
        let depth = async {
            call.no_query()?;
            let queue = QueueName::new(call.segment(0))?;
            app.ask(Duration::ZERO, app.store.depth(&queue, Some(&call.tenant))).await
        };
        audit.told(depth.await).map(|depth| json(StatusCode::OK, &QueueDepth::new(depth)))
    })
    .await
}

/// List dead letters.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/dead", operation_id = "dead_letters", tag = "queues",
    params(
        ("queue" = String, Path, min_length = 1, max_length = 255),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "How many are on the page; 100 where it is not said"),
    ),
    responses((status = 200, body = DeadLetters, description = "A page, in the order of their ids")),
)]
pub(crate) async fn dead(State(app): State<App>, call: Call) -> Answer {
    let audit = Audit::new("dead", &call);
    to_its_end(async move {
        let page = async {
            let [after, limit] = call.parameters(["after", "limit"])?;
            let after = after.map(|after| id("query parameter `after`", after)).transpose()?;
            let limit = limit.map_or(Ok(PAGE), |text| number("limit", text, 1..=1000))?;
            let queue = QueueName::new(call.segment(0))?;
            // One more than is shown tells whether there is a next page.
            let at_most = u32::try_from(limit + 1).expect("at most 1001");
            let found = app.store.dead(&queue, Some(&call.tenant), after, at_most);
            let found = app.ask(Duration::ZERO, found).await?;
            let limit = usize::try_from(limit).expect("at most 1000");
            let next = (found.len() > limit).then(|| found[limit - 1].id.to_string());
            let items = found.iter().take(limit).map(DeadLetter::new).collect();
            Ok(DeadLetters { items, next })
        };
        audit.told(page.await).map(|page| json(StatusCode::OK, &page))
    })
    .await
}

/// Put a dead letter back: it waits again in its old place, with its attempts counted anew.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dead/{id}/requeue", operation_id = "requeue_dead_letter", tag = "queues",
    params(("queue" = String, Path, min_length = 1, max_length = 255), ("id" = String, Path)),
    responses(
        (status = 204, description = "It waits; later ones of its key wait behind it"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`dead-letter-missing`"),
    ),
)]
pub(crate) async fn requeue(State(app): State<App>, call: Call) -> Answer {
    decide(app, call, Ruling::Requeue).await
}

/// Discard a dead letter: it is forgotten, and its key goes on.
#[utoipa::path(
    delete, path = "/v1/queues/{queue}/dead/{id}", operation_id = "discard_dead_letter", tag = "queues",
    params(("queue" = String, Path, min_length = 1, max_length = 255), ("id" = String, Path)),
    responses(
        (status = 204, description = "It is gone for good"),
        (status = 404, body = ProblemDocument, content_type = "application/problem+json", description = "`dead-letter-missing`"),
    ),
)]
pub(crate) async fn discard(State(app): State<App>, call: Call) -> Answer {
    decide(app, call, Ruling::Discard).await
}

#[derive(Clone, Copy)]
enum Ruling {
    Requeue,
    Discard,
}

async fn decide(app: App, call: Call, ruling: Ruling) -> Answer {
    let action = match ruling {
        Ruling::Requeue => "requeue",
        Ruling::Discard => "discard",
    };
    let mut audit = Audit::new(action, &call);
    to_its_end(async move {
        let decided = async {
            call.no_query()?;
            call.fields()?.finish()?;
            let (queue, tenant) = (QueueName::new(call.segment(0))?, Some(&call.tenant));
            let id = id("id", call.segment(2))?;
            audit.item = Some(id);
            let ruled = match ruling {
                Ruling::Requeue => app.store.requeue(&queue, tenant, id),
                Ruling::Discard => app.store.discard(&queue, tenant, id),
            };
            let there = app.ask(Duration::ZERO, ruled).await?;
            if there { Ok(()) } else { Err(missing()) }
        };
        let decided = decided.await;
        audit.told(decided).map(|()| StatusCode::NO_CONTENT.into_response())
    })
    .await
}

fn id(name: &str, text: &str) -> Result<ItemId, Problem> {
    let id = Uuid::try_parse(text).map(ItemId);
    id.map_err(|_| Problem::invalid(format!("{name} takes a UUID")))
}

fn missing() -> Problem {
    Problem::new(ProblemKind::DeadLetterMissing, "the queue has no such dead letter (any more)")
}
