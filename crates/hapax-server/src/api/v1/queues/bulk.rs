//! Requeueing and discarding many dead letters, as tasks.

use std::sync::Arc;

use hapax::Tenant;
use hapax::queue::{DeadLetterAction, DeadQuery, ItemId, QueueName};
use serde_json::Value;

use super::parse_item_id;
use crate::api::v1::audit::{AuditSubject, audited};
use crate::api::v1::prelude::*;
use crate::api::v1::tasks::{self, RunningTask, TaskBody, TaskSubject};

/// How many dead letters are read at once.
const PAGE: u32 = 100;
/// How many ids one request may name.
const MAX_IDS: usize = 10_000;

/// The dead letters of a task: `where` or `ids`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
#[schema(as = DeadLetterSelection)]
pub(crate) struct DeadLetterSelectionBody {
    /// All dead letters that match; `{}` for all of the tenant in this queue.
    #[schema(nullable = false)]
    r#where: Option<DeadLetterFilter>,
    /// These dead letters, 1 to 10,000 of them; excludes `where`.
    #[schema(nullable = false)]
    ids: Option<Vec<String>>,
}

/// Which dead letters match.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read field by field, strictly; this is what the documentation shows")]
pub(crate) struct DeadLetterFilter {
    /// Only those with this newest reason.
    #[schema(nullable = false)]
    reason: Option<String>,
    /// Only those with this topic.
    #[schema(nullable = false)]
    topic: Option<String>,
}

enum DeadLetterSelection {
    Ids(Vec<ItemId>),
    Where { reason: Option<Arc<str>>, topic: Option<String> },
}

/// Requeue many dead letters.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dead/requeue", operation_id = "requeue_dead_letters", tag = "queues",
    params(("Hapax-Note" = Option<String>, Header, description = "Why, for the audit log: at most 500 bytes of percent-encoded UTF-8")),
    request_body = DeadLetterSelectionBody,
    responses((status = 202, body = TaskBody, description = "A task of this node requeues them; `GET /v1/operator/tasks/{id}` shows its progress")),
)]
pub(crate) async fn requeue_many(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    resolve_many(app, request, "requeue", DeadLetterAction::Requeue).await
}

/// Discard many dead letters.
#[utoipa::path(
    post, path = "/v1/queues/{queue}/dead/discard", operation_id = "discard_dead_letters", tag = "queues",
    params(("Hapax-Note" = Option<String>, Header, description = "Why, for the audit log: at most 500 bytes of percent-encoded UTF-8")),
    request_body = DeadLetterSelectionBody,
    responses((status = 202, body = TaskBody, description = "A task of this node discards them; `GET /v1/operator/tasks/{id}` shows its progress")),
)]
pub(crate) async fn discard_many(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    resolve_many(app, request, "discard", DeadLetterAction::Discard).await
}

async fn resolve_many(
    app: AppState,
    request: ApiRequest,
    action: &'static str,
    resolve: DeadLetterAction,
) -> ApiResult {
    audited(app.clone(), action, request, move |request, trail| async move {
        request.expect_no_query()?;
        let queue = QueueName::new(request.segment(0))?;
        let selection = read_selection(request.json_fields()?)?;
        let mut subject = AuditSubject::of_queue("dead-letters", queue.as_str());
        let total = match &selection {
            DeadLetterSelection::Ids(ids) => Some(ids.len() as u64),
            DeadLetterSelection::Where { reason, topic } => {
                subject.reason = reason.as_deref().map(str::to_owned);
                subject.topic = topic.clone();
                let all = reason.is_none() && topic.is_none();
                let depth = app.call_store(app.store.depth(&queue, Some(&request.tenant))).await?;
                all.then_some(depth.dead)
            }
        };
        let task = TaskSubject { action, subject, total };
        let (app, tenant) = (&app, request.tenant.clone());
        tasks::begin(app, &request, &trail, task, |task| {
            resolve_selection(app.clone(), task, queue, tenant, selection, resolve)
        })
        .await
    })
    .await
}

fn read_selection(mut fields: JsonFields) -> Result<DeadLetterSelection, Problem> {
    let (filter, ids) = (fields.object("where")?, fields.value("ids"));
    fields.finish()?;
    match (filter, ids) {
        (Some(filter), None) => {
            let mut filter = JsonFields::from_value(Value::Object(filter), "an object")?;
            let (reason, topic) = (filter.text("reason")?, filter.text("topic")?);
            filter.finish()?;
            Ok(DeadLetterSelection::Where { reason: reason.map(Into::into), topic })
        }
        (None, Some(Value::Array(ids))) if (1..=MAX_IDS).contains(&ids.len()) => {
            let id = |id: &Value| parse_item_id("each of field `ids`", id.as_str().unwrap_or(""));
            Ok(DeadLetterSelection::Ids(ids.iter().map(id).collect::<Result<_, _>>()?))
        }
        (None, Some(_)) => {
            Err(Problem::invalid(format!("field `ids` takes an array of 1 to {MAX_IDS} UUIDs")))
        }
        _ => Err(Problem::invalid(
            "one of the fields `where` and `ids` is needed; `\"where\":{}` means all dead letters",
        )),
    }
}

async fn resolve_selection(
    app: AppState,
    task: Arc<RunningTask>,
    queue: QueueName,
    tenant: Tenant,
    selection: DeadLetterSelection,
    action: DeadLetterAction,
) -> Result<bool, Problem> {
    let resolve = async |id: ItemId| {
        let call = || app.store.resolve_dead(&queue, Some(&tenant), id, action);
        task.count(task.call_store(&app, call).await?);
        Ok::<_, Problem>(())
    };
    let (reason, topic) = match selection {
        DeadLetterSelection::Where { reason, topic } => (reason, topic),
        DeadLetterSelection::Ids(ids) => {
            for id in ids {
                if task.is_stopped() {
                    return Ok(false);
                }
                resolve(id).await?;
            }
            return Ok(true);
        }
    };
    let mut query = DeadQuery::new(PAGE).reason(reason);
    loop {
        let read = || app.store.dead(&queue, Some(&tenant), &query);
        let page = task.call_store(&app, read).await?;
        let Some(last) = page.last() else { return Ok(true) };
        let next = last.id;
        for dead in &page {
            if task.is_stopped() {
                return Ok(false);
            }
            if topic.as_deref().is_none_or(|topic| topic == &*dead.topic) {
                resolve(dead.id).await?;
            }
        }
        // Ids only grow: an item that dies again while the task runs is not touched twice.
        query.after = Some(next);
    }
}
