//! `/v1/operator/locks`: the locks that are held, and ending one in place of its owner.

use hapax::activity::key_hash;
use hapax::claims::ClaimState;
use hapax::{ClaimStatus, ClaimSummary, ClaimView, GiveBack, Key, KeyKind, Step, millis};

use super::by_hash::{find_key, is_by_hash};
use super::{claim_query, page};
use crate::api::request::reveal::Reveal;
use crate::api::v1::audit::{AuditSubject, audited};
use crate::api::v1::prelude::*;

/// A page of locks.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct LockList {
    /// The locks that are held.
    pub(crate) locks: Vec<ListedLock>,
    /// The `after` of the next page; null at the end. Earlier pages may be short or even empty.
    #[schema(required)]
    pub(crate) next: Option<String>,
}

/// One lock of a list.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ListedLock {
    /// The name of the lock; null if it is masked.
    #[schema(required)]
    pub(crate) key: Option<String>,
    /// A hash of the key, equal for equal keys. It can name the row in place of the key: `by=hash`.
    #[serde(default)]
    pub(crate) key_hash: String,
    /// The fence of its owner.
    pub(crate) fence: u64,
    /// How long ago it was taken.
    pub(crate) taken_ms_ago: u64,
    /// How long it lasts without renewal.
    pub(crate) expires_in_ms: u64,
    /// The label of the owner: what it called itself, or the node that it asked.
    #[serde(default)]
    #[schema(required)]
    pub(crate) label: Option<String>,
    /// Whether the name is hidden.
    #[serde(default)]
    pub(crate) masked: bool,
}

impl ListedLock {
    fn new(listed: &ClaimSummary, reveal: Reveal) -> Self {
        Self {
            key: reveal.show(listed.key.name().to_owned()),
            key_hash: key_hash(&listed.key),
            fence: listed.fence.0,
            taken_ms_ago: millis(listed.granted_ago),
            expires_in_ms: millis(listed.expires_in),
            label: listed.label.as_deref().map(str::to_owned),
            masked: reveal.is_masked(),
        }
    }
}

/// List the locks that are held.
#[utoipa::path(
    get, path = "/v1/operator/locks", operation_id = "list_locks", tag = "operator",
    params(
        ("after" = Option<String>, Query, description = "The `next` of the page before"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The approximate size of the page; 100 by default"),
        ("reveal" = Option<bool>, Query, description = "Whether names are shown; by default to `admin` tokens only. `true` is audited, and 403 for the scope `read`"),
    ),
    responses((status = 200, body = LockList, description = "A page; it may be short or even empty while there is a `next`. On Redis locks with verbatim names are left out: they may be another program's")),
)]
pub(crate) async fn list_locks(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "locks", request, |request, trail| async move {
        let [after, limit, reveal] = request.query_parameters(["after", "limit", "reveal"])?;
        let reveal = request.reveal(&app, reveal)?;
        let status = Some(ClaimStatus::Pending);
        let query = claim_query(&app, &request, KeyKind::Lock, status, after, limit)?;
        trail.begin_reveal(reveal, AuditSubject::new("locks")).await?;
        let (claims, next) = app.call_store(page(&app, query)).await?;
        let locks = claims.iter().map(|lock| ListedLock::new(lock, reveal)).collect();
        Ok(json_response(StatusCode::OK, &LockList { locks, next }))
    })
    .await
}

/// Release a lock in place of its owner, who learns of it at the next renewal. What the owner does
/// until then is done without the lock: find out first that it is gone.
#[utoipa::path(
    delete, path = "/v1/operator/locks/{key}", operation_id = "force_release_lock", tag = "operator",
    params(
        ("by" = Option<String>, Query, description = "`hash`: the path has the `key_hash` of the list in place of the key"),
        ("after" = Option<String>, Query, description = "With `by=hash`: the `after` of the page that shows the row, which makes the search for it short"),
    ),
    responses(
        (status = 204, description = "The lock is free; only its fence keeps growing"),
        (status = 404, description = "`lock-free`: nobody holds the lock"),
        (status = 409, description = "`lock-held`: another program holds the lock (Redis), or another owner took it just now; nothing was changed"),
    ),
)]
pub(crate) async fn force_release(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "force-release", request, |request, trail| async move {
        let [by, after] = request.query_parameters(["by", "after"])?;
        let key = if is_by_hash(by)? {
            let status = Some(ClaimStatus::Pending);
            let query = claim_query(&app, &request, KeyKind::Lock, status, after, None)?;
            find_key(&app, query, request.segment(1)).await?.ok_or_else(lock_free)?
        } else if after.is_some() {
            return Err(Problem::invalid("query parameter `after` needs `by=hash`"));
        } else {
            Key::lock(&request.tenant, request.segment(1))?
        };
        let name = key.name();
        let held = held(app.call_store(app.store.look(&key)).await?).ok_or_else(lock_free)?;
        let Some(token) = held.token else {
            let text = "a program that does not use hapax holds the lock; end it there";
            return Err(Problem::new(ProblemKind::LockHeld, text).not_retryable());
        };
        let fence = held.fence.map(|fence| fence.0);
        let subject =
            AuditSubject { key: Some(name.to_owned()), fence, ..AuditSubject::new("lock") };
        trail.begin("force-release", subject).await?;
        // Not repeated, because a second release would find nothing and be reported as lost.
        match app.call_store(app.store.give_back(&key, &token, GiveBack::Forget)).await? {
            Step::Done(_) => Ok(no_content()),
            Step::Lost => match held_now(&app, &key).await? {
                None => Err(lock_free()),
                Some(_) => {
                    let text = "another owner took the lock just now; nothing was changed";
                    Err(Problem::new(ProblemKind::LockHeld, text))
                }
            },
        }
    })
    .await
}

async fn held_now(app: &AppState, key: &Key) -> Result<Option<ClaimView>, Problem> {
    Ok(held(app.call_store(app.store.look(key)).await?))
}

/// The lock, if somebody holds it.
fn held(view: Option<ClaimView>) -> Option<ClaimView> {
    view.filter(|view| matches!(view.state, ClaimState::Pending { .. }))
}

fn lock_free() -> Problem {
    Problem::new(ProblemKind::LockFree, "nobody holds the lock; there is nothing to release")
}
