//! `/v1/operator/keys`: the life of one key, from its claim to its end.

use hapax::activity::{KeyCounts, key_hash};
use hapax::claims::ClaimState;
use hapax::command::CommandState;
use hapax::{ClaimView, Key, KeyKind, Operation, millis};

use super::{HOUR, activity_since, now};
use crate::api::request::reveal::Reveal;
use crate::api::v1::audit::{AuditSubject, audited};
use crate::api::v1::commands::schema::{ShownResponse, shown_response};
use crate::api::v1::operator::find_tenant;
use crate::api::v1::prelude::*;

/// The life of one key.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyLife {
    /// `command`, `inbox` or `lock`.
    pub(crate) kind: String,
    /// `pending`, `unknown`, `settled` or `failed`.
    pub(crate) state: String,
    /// The fence of the last grant; null if a foreign program holds the lock.
    #[schema(required)]
    pub(crate) fence: Option<u64>,
    /// How many times it was granted.
    pub(crate) attempt: u32,
    /// The label of the owner: the node that claimed it, or what its client called itself.
    #[schema(required)]
    pub(crate) owner: Option<String>,
    /// When it was last granted, in milliseconds since 1970.
    #[schema(required)]
    pub(crate) claimed_at: Option<u64>,
    /// When it was settled, or given back as failed, in milliseconds since 1970.
    #[schema(required)]
    pub(crate) settled_at: Option<u64>,
    /// The rest of the lease, while the owner is believed alive.
    #[schema(required)]
    pub(crate) lease_left_ms: Option<u64>,
    /// How long it is still remembered; null for a pending one, which is remembered for longer than its lease.
    #[schema(required)]
    pub(crate) expires_in_ms: Option<u64>,
    /// The hash by which the list of suppressed duplicates names it.
    pub(crate) key_hash: String,
    /// What the nodes reported of it in the last hour.
    pub(crate) seen: SeenKey,
    /// The stored answer of a command; null if there is none, or it is masked.
    #[schema(required)]
    pub(crate) response: Option<ShownResponse>,
    /// Whether the answer is hidden.
    pub(crate) masked: bool,
}

/// What the nodes reported of a key.
#[derive(Serialize, ToSchema)]
pub(crate) struct SeenKey {
    /// Since when, in milliseconds since 1970. Of busy nodes only some keys are counted.
    pub(crate) since: u64,
    /// Granted.
    pub(crate) claimed: u64,
    /// Its lease was renewed.
    pub(crate) renewed: u64,
    /// Settled or released.
    pub(crate) settled: u64,
    /// A duplicate got its answer.
    pub(crate) replayed: u64,
    /// A duplicate waited for its answer.
    pub(crate) waited: u64,
    /// A duplicate was refused.
    pub(crate) refused: u64,
}

/// Show the life of a key.
#[utoipa::path(
    get, path = "/v1/operator/keys/{kind}/{scope}/{key}", operation_id = "show_key", tag = "operator",
    params(
        ("caller" = Option<String>, Query, min_length = 1, max_length = 64, description = "The caller of a command behind the proxy: `scope` of the list of commands; may be left out if only one caller has such a command"),
        ("reveal" = Option<bool>, Query, description = "Whether the stored answer is shown; by default to `admin` tokens only. `true` is audited, and 403 for the scope `read`"),
    ),
    responses(
        (status = 200, body = KeyLife, description = "Its state, owner and times. `kind` is command (`scope` is the operation), inbox (the consumer) or lock (`-`)"),
        (status = 404, description = "`command-missing`: nothing is stored under this key, or no longer"),
        (status = 409, description = "`scope-ambiguous`: several callers have such a command"),
    ),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "key", request, |request, trail| async move {
        let [caller, reveal] = request.query_parameters(["caller", "reveal"])?;
        let reveal = request.reveal(&app, reveal)?;
        let key = find_key(&app, &request, caller).await?;
        let view = app.call_store(app.store.look(&key)).await?;
        let view = view.ok_or_else(|| {
            let text = "nothing is stored under this key, or no longer";
            Problem::new(ProblemKind::CommandMissing, text)
        })?;
        let name = request.segment(3).to_owned();
        let subject = AuditSubject { key: Some(name), ..AuditSubject::new(request.segment(1)) };
        trail.begin_reveal(reveal, subject).await?;
        let response = match reveal.is_masked() {
            true => None,
            false => stored_response(&app, &key).await?,
        };
        let since = now().saturating_sub(HOUR);
        let entries = app.call_store(activity_since(&app, &request.tenant, since)).await?;
        let key_hash = key_hash(&key);
        let mut seen = KeyCounts::default();
        entries
            .iter()
            .filter_map(|entry| entry.keys.get(&key_hash))
            .for_each(|counts| seen.add(counts));
        let seen = SeenKey::new(since, &seen);
        let life =
            KeyLife { response, ..KeyLife::new(request.segment(1), key_hash, &view, seen, reveal) };
        Ok(json_response(StatusCode::OK, &life))
    })
    .await
}

/// The key that the path names, of the caller that the query names.
async fn find_key(
    app: &AppState,
    request: &ApiRequest,
    caller: Option<&str>,
) -> Result<Key, Problem> {
    let (kind, scope, name) = (request.segment(1), request.segment(2), request.segment(3));
    match kind {
        "command" => {
            let tenant = find_tenant(app, request, (scope, name), caller).await?;
            Ok(Key::command(&tenant, Operation(scope), name)?)
        }
        "inbox" => Ok(Key::inbox(&request.tenant, scope, name)?),
        "lock" if scope == "-" => Ok(Key::lock(&request.tenant, name)?),
        "lock" => Err(Problem::invalid("a lock has no scope: write `-` in its place")),
        _ => Err(Problem::invalid("kind takes command, inbox or lock")),
    }
}

/// The answer of a completed command.
async fn stored_response(app: &AppState, key: &Key) -> Result<Option<ShownResponse>, Problem> {
    if key.kind() != KeyKind::Command {
        return Ok(None);
    }
    let commands = app.commands(key.tenant());
    let view = app.call_store(commands.look(Operation(key.scope()), key.name())).await?;
    Ok(view.and_then(|view| match view.state {
        CommandState::Completed { response, .. } => Some(shown_response(&response)),
        _ => None,
    }))
}

impl SeenKey {
    fn new(since: u64, counts: &KeyCounts) -> Self {
        let KeyCounts { claimed, renewed, settled, replayed, waited, refused } = *counts;
        Self { since, claimed, renewed, settled, replayed, waited, refused }
    }
}

impl KeyLife {
    /// The life of a claim, without its answer.
    fn new(kind: &str, key_hash: String, view: &ClaimView, seen: SeenKey, reveal: Reveal) -> Self {
        let now = now();
        let (state, lease_left, expires_in) = match &view.state {
            ClaimState::Pending { lease_left } => ("pending", Some(*lease_left), None),
            ClaimState::Unknown { expires_in, .. } => ("unknown", None, Some(*expires_in)),
            ClaimState::Settled { expires_in, .. } => ("settled", None, Some(*expires_in)),
            ClaimState::Failed { expires_in } => ("failed", None, Some(*expires_in)),
        };
        let ended = matches!(view.state, ClaimState::Settled { .. } | ClaimState::Failed { .. });
        let settled_ago = view.retention.zip(expires_in).filter(|_| ended);
        let settled_ago = settled_ago.map(|(retention, left)| retention.saturating_sub(left));
        let before = |ago| now.saturating_sub(millis(ago));
        Self {
            kind: kind.to_owned(),
            state: state.to_owned(),
            fence: view.fence.map(|fence| fence.0),
            attempt: view.attempt,
            owner: view.token.as_ref().and_then(|token| token.label()).map(str::to_owned),
            claimed_at: view.granted_ago.map(before),
            settled_at: settled_ago.map(before),
            lease_left_ms: lease_left.map(millis),
            expires_in_ms: expires_in.map(millis),
            key_hash,
            seen,
            response: None,
            masked: reveal.is_masked(),
        }
    }
}
