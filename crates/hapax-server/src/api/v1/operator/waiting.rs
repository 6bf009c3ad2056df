//! `/v1/operator/queues/{queue}/waiting`: the oldest items, and which keys lag behind.

use std::collections::HashMap;
use std::sync::Arc;

use hapax::millis;
use hapax::queue::{QueueName, QueuedItem};

use crate::api::request::reveal::Reveal;
use crate::api::v1::audit::{AuditSubject, audited};
use crate::api::v1::prelude::*;

/// How many of the oldest items are examined for the lag of keys.
const EXAMINED: u32 = 1000;
/// How many keys are shown.
const MAX_KEYS: usize = 100;

/// The oldest items of a queue.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct WaitingItems {
    /// Items that wait or are in flight, oldest first.
    pub(crate) items: Vec<WaitingItem>,
    /// The keys of the 1000 oldest items, the one that lags most first.
    pub(crate) keys: Vec<LaggingKey>,
}

/// One item that waits or is in flight.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct WaitingItem {
    /// The id of the item.
    pub(crate) id: String,
    /// The topic of the item.
    pub(crate) topic: String,
    /// The ordering key of the item; null if it has none, or it is masked.
    #[schema(required)]
    pub(crate) key: Option<String>,
    /// How long ago it was enqueued.
    pub(crate) age_ms: u64,
    /// How many attempts were made, including the one in flight.
    pub(crate) attempts: u32,
    /// Whether a worker has it.
    pub(crate) in_flight: bool,
    /// The newest reason why it failed.
    #[schema(required)]
    pub(crate) reason: Option<String>,
    /// Whether the key is hidden.
    pub(crate) masked: bool,
}

/// The items of one key.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct LaggingKey {
    /// The ordering key; null if it is masked.
    #[schema(required)]
    pub(crate) key: Option<String>,
    /// How many of the examined items have it.
    pub(crate) waiting: u64,
    /// The age of the oldest of them.
    pub(crate) oldest_age_ms: u64,
}

/// Show the oldest items of a queue, and the keys that lag.
#[utoipa::path(
    get, path = "/v1/operator/queues/{queue}/waiting", operation_id = "waiting_items", tag = "operator",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "How many items are shown; 100 by default"),
        ("reveal" = Option<bool>, Query, description = "Whether keys are shown; by default to `admin` tokens only. `true` is audited, and 403 for the scope `read`"),
    ),
    responses((status = 200, body = WaitingItems, description = "The oldest items of the tenant that wait or are in flight")),
)]
pub(crate) async fn waiting(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "waiting", request, |request, trail| async move {
        let [limit, reveal] = request.query_parameters(["limit", "reveal"])?;
        let reveal = request.reveal(&app, reveal)?;
        let limit = parse_page_limit(limit)? as usize;
        let queue = QueueName::new(request.segment(1))?;
        let subject = AuditSubject::of_queue("waiting", queue.as_str());
        trail.begin_reveal(reveal, subject).await?;
        let found = app.store.waiting(&queue, Some(&request.tenant), EXAMINED);
        let found = app.call_store(found).await?;
        let items = found.iter().take(limit).map(|item| WaitingItem::new(item, reveal)).collect();
        let body = WaitingItems { items, keys: lagging_keys(&found, reveal) };
        Ok(json_response(StatusCode::OK, &body))
    })
    .await
}

impl WaitingItem {
    fn new(item: &QueuedItem, reveal: Reveal) -> Self {
        Self {
            id: item.id.to_string(),
            topic: item.topic.to_string(),
            key: item.key.as_deref().and_then(|key| reveal.show(key.to_owned())),
            age_ms: millis(item.age),
            attempts: item.attempts,
            in_flight: item.in_flight,
            reason: item.reason.as_deref().map(str::to_owned),
            masked: reveal.is_masked(),
        }
    }
}

fn lagging_keys(items: &[QueuedItem], reveal: Reveal) -> Vec<LaggingKey> {
    let mut keys: HashMap<&Arc<str>, (u64, u64)> = HashMap::new();
    for item in items {
        let Some(key) = &item.key else { continue };
        let (waiting, oldest) = keys.entry(key).or_default();
        *waiting += 1;
        *oldest = (*oldest).max(millis(item.age));
    }
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_by(|(a, one), (b, other)| (other.1, other.0, a).cmp(&(one.1, one.0, b)));
    let shown = |(key, (waiting, oldest_age_ms)): (&Arc<str>, _)| LaggingKey {
        key: reveal.show(key.to_string()),
        waiting,
        oldest_age_ms,
    };
    keys.into_iter().take(MAX_KEYS).map(shown).collect()
}
