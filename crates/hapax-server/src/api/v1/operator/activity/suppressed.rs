//! `/v1/operator/suppressed`: duplicates that did no harm; `/v1/operator/activity`: the same as they happen.

use hapax::activity::{LiveCursor, LivePage, SuppressedDuplicate, SuppressionKind, keys};

use super::reader;
use crate::api::sse::{FrameForm, follow_keys};
use crate::api::v1::audit::audited;
use crate::api::v1::operator::cursor::{invalid_cursor, unwrap_cursor, wrap_cursor};
use crate::api::v1::prelude::*;

/// A page of suppressed duplicates, newest first.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct SuppressedList {
    /// The duplicates.
    pub(crate) items: Vec<ListedDuplicate>,
    /// The `after` of the next page; null at the end. Pages may be short or even empty.
    #[schema(required)]
    pub(crate) next: Option<String>,
}

/// A duplicate that did no harm.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ListedDuplicate {
    /// When it came, in milliseconds since 1970.
    pub(crate) at: u64,
    /// The node that had it.
    pub(crate) node: String,
    /// The kind of the node.
    pub(crate) edge: String,
    /// The operation, consumer or domain; `lock` for locks.
    pub(crate) operation: String,
    /// `replayed`, `waited`, `refused` or `out_of_order`.
    #[schema(value_type = String)]
    pub(crate) kind: SuppressionKind,
    /// The caller, as a hash; null if keys are not apart by caller.
    #[schema(required)]
    pub(crate) caller: Option<String>,
    /// A hash of the key, equal for equal keys.
    pub(crate) key_hash: String,
    /// How long after the first one it came; null if that is not known.
    #[schema(required)]
    pub(crate) after_first_ms: Option<u64>,
}

/// How many entries one page examines.
const MAX_EXAMINED: usize = 500;

/// List duplicates that did no harm.
#[utoipa::path(
    get, path = "/v1/operator/suppressed", operation_id = "list_suppressed", tag = "operator",
    params(
        ("kind" = Option<String>, Query, description = "Only `replayed`, `waited`, `refused` or `out_of_order`"),
        ("operation" = Option<String>, Query, description = "Only this operation, consumer or domain"),
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The approximate size of the page; 100 by default"),
    ),
    responses((status = 200, body = SuppressedList, description = "A page, newest first: samples of the last two hours, at most 20 of each node and interval")),
)]
pub(crate) async fn list(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "suppressed", request, |request, _| async move {
        let [kind, operation, after, limit] =
            request.query_parameters(["kind", "operation", "after", "limit"])?;
        let kind = kind.map(parse_kind).transpose()?;
        let limit = parse_page_limit(limit)? as usize;
        let (store, tenant) = (app.store.name(), &request.tenant);
        let cursor = |after| {
            let text = unwrap_cursor(store, tenant, after)?;
            text.parse::<LiveCursor>().map_err(|_| invalid_cursor())
        };
        let mut before = after.map(cursor).transpose()?;
        let shows = |duplicate: &SuppressedDuplicate| {
            kind.is_none_or(|kind| duplicate.kind == kind)
                && operation.is_none_or(|operation| duplicate.operation == operation)
        };
        let (mut items, mut examined) = (Vec::new(), 0);
        while items.len() < limit && examined < MAX_EXAMINED {
            let reader = reader(&app);
            let page = app.call_store(reader.live(tenant, before, 20)).await?;
            examined += page.entries.len();
            items.extend(duplicates(&page, shows));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        let next = before.map(|next| wrap_cursor(store, tenant, &next.to_string()));
        Ok(json_response(StatusCode::OK, &SuppressedList { items, next }))
    })
    .await
}

/// The duplicates of a page of entries that match, newest first.
fn duplicates(
    page: &LivePage,
    shows: impl Fn(&SuppressedDuplicate) -> bool,
) -> Vec<ListedDuplicate> {
    let mut found = Vec::new();
    for entry in &page.entries {
        for duplicate in entry.suppressed.iter().rev().filter(|duplicate| shows(duplicate)) {
            let SuppressedDuplicate { at, operation, kind, caller, key_hash, after_first_ms } =
                duplicate.clone();
            let (node, edge) = (entry.node.clone(), entry.edge.clone());
            found.push(ListedDuplicate {
                at,
                node,
                edge,
                operation,
                kind,
                caller,
                key_hash,
                after_first_ms,
            });
        }
    }
    found
}

fn parse_kind(text: &str) -> Result<SuppressionKind, Problem> {
    match text {
        "replayed" => Ok(SuppressionKind::Replayed),
        "waited" => Ok(SuppressionKind::Waited),
        "refused" => Ok(SuppressionKind::Refused),
        "out_of_order" => Ok(SuppressionKind::OutOfOrder),
        _ => Err(Problem::invalid(
            "query parameter `kind` takes replayed, waited, refused or out_of_order",
        )),
    }
}

/// Follow the activity of all nodes.
#[utoipa::path(
    get, path = "/v1/operator/activity", operation_id = "follow_activity", tag = "operator",
    params(
        ("Last-Event-ID" = Option<String>, Header, description = "Where to resume; browsers send it on their own"),
    ),
    responses((status = 200, body = String, content_type = "text/event-stream", description = "Frames without a name, from now on: the activity of one node in the last seconds; one with `from` and `to` alone if some were missed")),
)]
pub(crate) async fn follow(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    request.expect_no_query()?;
    let tenant = request.tenant.without_scope();
    let end = app.call_store(reader(&app).live_end(&tenant)).await?;
    follow_keys(&app, &request, &keys::live_jobs(&tenant), end, FrameForm::Unnamed).await
}
