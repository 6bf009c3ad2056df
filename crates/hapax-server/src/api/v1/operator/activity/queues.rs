//! `/v1/operator/queues`: every queue with its rates, its pause and its targets.

use hapax::activity::{ActivityEntry, NodeReport};
use hapax::queue::QueueDepth;
use hapax::worker::paused;

use super::overview::ListedTarget;
use super::{MINUTE, activity_since, now, reader};
use crate::api::v1::audit::audited;
use crate::api::v1::prelude::*;
use crate::api::v1::queues::QueueDepthBody;

/// Every queue of the store.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct WatchedQueues {
    /// The queues.
    pub(crate) queues: Vec<WatchedQueue>,
}

/// One queue.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct WatchedQueue {
    /// The name of the queue.
    pub(crate) queue: String,
    #[serde(flatten)]
    pub(crate) depth: QueueDepthBody,
    /// Who paused it, when and why; null if it is not paused.
    #[schema(required)]
    pub(crate) paused: Option<QueuePauseBody>,
    /// Items that were added per second, over the last five minutes; null as long as that is not known. It follows from two
    /// depths, which may be estimates in a queue of more than 100,000 items.
    #[schema(required)]
    pub(crate) in_per_s: Option<f64>,
    /// Items that were done, or became dead letters, per second, over the last five minutes.
    pub(crate) out_per_s: f64,
    /// What its workers send to.
    pub(crate) targets: Vec<ListedTarget>,
}

/// The pause of a queue.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = QueuePause)]
pub(crate) struct QueuePauseBody {
    /// The name of the token that paused it.
    pub(crate) by: String,
    /// When, in milliseconds since 1970.
    pub(crate) at: u64,
    /// The operator's note.
    #[schema(required)]
    pub(crate) note: Option<String>,
}

/// The time over which rates are measured.
const RATE_WINDOW: u64 = 5 * MINUTE;

/// List queues with their rates, pauses and targets.
#[utoipa::path(
    get, path = "/v1/operator/queues", operation_id = "watch_queues", tag = "operator",
    responses((status = 200, body = WatchedQueues, description = "Every queue of the store, with its depth for this tenant")),
)]
pub(crate) async fn list(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "watch-queues", request, |request, _| async move {
        request.expect_no_query()?;
        let tenant = &request.tenant;
        let now = now();
        let reading = async {
            let entries = activity_since(&app, tenant, now.saturating_sub(RATE_WINDOW)).await?;
            let nodes = reader(&app).nodes().await?;
            let mut queues = Vec::new();
            for queue in app.store.queues().await? {
                let depth = app.store.depth(&queue, Some(tenant)).await?;
                let paused = paused(&*app.store, &queue).await?;
                let name = queue.as_str().to_owned();
                let (in_per_s, out_per_s) = rates(&entries, &name, &depth, now);
                queues.push(WatchedQueue {
                    targets: targets(&nodes, &name),
                    queue: name,
                    depth: QueueDepthBody::new(depth),
                    paused: paused.map(|paused| QueuePauseBody {
                        by: paused.by,
                        at: paused.at,
                        note: paused.note,
                    }),
                    in_per_s,
                    out_per_s,
                });
            }
            Ok::<_, hapax::StoreError>(queues)
        };
        let queues = app.call_store(reading).await?;
        Ok(json_response(StatusCode::OK, &WatchedQueues { queues }))
    })
    .await
}

fn targets(nodes: &[NodeReport], queue: &str) -> Vec<ListedTarget> {
    let running = nodes.iter().filter(|node| !node.stopped);
    let targets = running.filter_map(ListedTarget::of);
    targets.filter(|target| target.queue.as_deref() == Some(queue)).collect()
}

/// Items per second, in and out. What came in is what went out, and by how much the queue has grown: rows that
/// other programs insert are seen by no node.
fn rates(
    entries: &[ActivityEntry],
    queue: &str,
    depth: &QueueDepth,
    now: u64,
) -> (Option<f64>, f64) {
    let outcomes = |entry: &ActivityEntry| {
        entry.queues.get(queue).map_or(0, |outcomes| outcomes.acked + outcomes.buried)
    };
    let out: u64 = entries.iter().map(outcomes).sum();
    let begun = entries.first().map_or(now, |entry| entry.at);
    let seconds = |since: u64| (now.saturating_sub(since) as f64 / 1000.0).max(1.0);
    let out_per_s = out as f64 / seconds(begun);
    let measured = entries.iter().find_map(|entry| {
        let depth = entry.depths.get(queue)?;
        Some((entry.at + entry.ms, depth.waiting + depth.in_flight + depth.dead))
    });
    let in_per_s = measured.map(|(since, before)| {
        let left: u64 =
            entries.iter().filter(|entry| entry.at + entry.ms > since).map(outcomes).sum();
        // Dead letters stay in the queue, and count as gone above.
        let grown = (depth.waiting + depth.in_flight + depth.dead) as f64 - before as f64;
        ((left as f64 + grown) / seconds(since)).max(0.0)
    });
    (in_per_s, out_per_s)
}
