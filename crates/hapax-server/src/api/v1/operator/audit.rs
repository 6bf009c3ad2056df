//! `/v1/operator/audit`: what operators did and revealed.

use super::cursor::{invalid_cursor, unwrap_cursor, wrap_cursor};
use crate::api::v1::audit::{AuditEntry, AuditSubject, audited};
use crate::api::v1::prelude::*;

/// A page of the audit log, newest first.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditPage {
    /// The actions.
    pub(crate) items: Vec<AuditedAction>,
    /// The `after` of the next page; null at the end.
    #[schema(required)]
    pub(crate) next: Option<String>,
}

/// One action of an operator.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditedAction {
    /// The id of the action.
    pub(crate) id: String,
    /// When it began, in milliseconds since 1970.
    pub(crate) at: u64,
    /// The name of the token; `-` where the server has none.
    pub(crate) who: String,
    /// What was done: `settle`, `release`, `requeue`, `discard`, `force-release`, `pause`, `resume`, or
    /// `reveal` for a look at what is masked.
    #[schema(example = "settle")]
    pub(crate) action: String,
    /// `done`; the code of the problem that refused it; `stopped` for a task; or `begun` while it runs, or
    /// if its node died before it knew the result.
    #[schema(example = "done")]
    pub(crate) result: String,
    /// What it was done to.
    pub(crate) subject: AuditSubject,
    /// The operator's note (`Hapax-Note`).
    #[schema(required)]
    pub(crate) note: Option<String>,
    /// The node that did it.
    pub(crate) node: String,
    /// Whether the key of the subject is hidden.
    pub(crate) masked: bool,
}

/// List what operators did and revealed, newest first.
#[utoipa::path(
    get, path = "/v1/operator/audit", operation_id = "list_audit", tag = "operator",
    params(
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The size of the page; 100 by default"),
        ("reveal" = Option<bool>, Query, description = "Whether keys are shown; by default to `admin` tokens only"),
    ),
    responses((status = 200, body = AuditPage, description = "A page, newest first; one item per action. The last 366 days or 50,000 actions are kept")),
)]
pub(crate) async fn list_audit(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "audit", request, |request, trail| async move {
        let [after, limit, reveal] = request.query_parameters(["after", "limit", "reveal"])?;
        let reveal = request.reveal(&app, reveal)?;
        let limit = parse_page_limit(limit)? as usize;
        let (store, tenant) = (app.store.name(), &request.tenant);
        let position = |after| {
            let text = unwrap_cursor(store, tenant, after)?;
            text.parse().map_err(|()| invalid_cursor())
        };
        let from = after.map(position).transpose()?;
        trail.begin_reveal(reveal, AuditSubject::new("audit")).await?;
        let (entries, next) = app.call_store(app.audit.page(tenant, from, limit)).await?;
        let row = |entry: AuditEntry| {
            let AuditEntry { id, at, who, action, result, mut subject, note, node, .. } = entry;
            let masked = reveal.is_masked() && subject.key.take().is_some();
            AuditedAction { id, at, who, action, result, subject, note, node, masked }
        };
        let next = next.map(|next| wrap_cursor(store, tenant, &next.to_string()));
        let page = AuditPage { items: entries.into_iter().map(row).collect(), next };
        Ok(json_response(StatusCode::OK, &page))
    })
    .await
}
