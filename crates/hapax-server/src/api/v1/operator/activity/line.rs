//! `/v1/operator/line`: the gateways of LINE, and what became of their events.

use std::collections::BTreeMap;

use hapax::KeyKind;
use hapax::activity::NodeReport;
use hapax::queue::QueueName;

use super::{HOUR, activity_since, now, reader};
use crate::api::v1::audit::audited;
use crate::api::v1::prelude::*;
use crate::api::v1::queues::{ListedQueue, QueueDepthBody};

/// The gateways of LINE, and what became of their events.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct LineSummary {
    /// Events of the last hour by what became of them (`accepted`, `duplicate`, `unprotected`, `refused`, `done`, `busy`,
    /// `failed`, `dead`), and messages to LINE (`replied`, `pushed`).
    pub(crate) counts: BTreeMap<String, u64>,
    /// The gateways.
    pub(crate) gateways: Vec<ListedGateway>,
    /// Their queues.
    pub(crate) queues: Vec<ListedQueue>,
    /// How many locks the tenant holds, those of users included; on Redis counted in the background, and null
    /// before that.
    #[schema(required)]
    pub(crate) locks: Option<u64>,
}

/// One gateway.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ListedGateway {
    /// The name of the node.
    pub(crate) node: String,
    /// Whether the bot takes events; null if that is not known.
    #[schema(required)]
    pub(crate) bot_up: Option<bool>,
    /// The messages that the channel may send in a month; null if LINE did not say.
    #[schema(required)]
    pub(crate) quota: Option<LineQuota>,
}

/// The messages that a channel may send in a month.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct LineQuota {
    /// The limit; null if there is none.
    #[schema(required)]
    pub(crate) limit: Option<u64>,
    /// How many were sent.
    pub(crate) used: u64,
}

impl ListedGateway {
    fn new(report: &NodeReport) -> Self {
        Self {
            node: report.node.clone(),
            bot_up: report.target.as_ref().map(|target| target.up),
            quota: report.quota.map(|quota| LineQuota { limit: quota.limit, used: quota.used }),
        }
    }
}

/// Show the gateways of LINE.
#[utoipa::path(
    get, path = "/v1/operator/line", operation_id = "show_line", tag = "operator",
    responses((status = 200, body = LineSummary, description = "The gateways on this store, and the events of this tenant")),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "line", request, |request, _| async move {
        request.expect_no_query()?;
        let tenant = &request.tenant;
        let reading = async {
            let entries = activity_since(&app, tenant, now().saturating_sub(HOUR)).await?;
            let mut nodes = reader(&app).nodes().await?;
            nodes.retain(|node| node.edge == "line" && !node.stopped);
            let mut queues: Vec<ListedQueue> = Vec::new();
            for node in &nodes {
                let name = node.target.as_ref().and_then(|target| target.queue.as_deref());
                let Some(queue) = name.and_then(|name| QueueName::new(name).ok()) else { continue };
                if queues.iter().all(|listed| listed.queue != queue.as_str()) {
                    let depth = app.store.depth(&queue, Some(tenant)).await?;
                    let (queue, depth) = (queue.as_str().to_owned(), QueueDepthBody::new(depth));
                    queues.push(ListedQueue { queue, depth });
                }
            }
            let locks = match app.store.count_open(Some(tenant), KeyKind::Lock).await? {
                Some(locks) => Some(locks),
                None => app.claim_counter.read(&app, tenant).await.found.map(|found| found.locks),
            };
            Ok::<_, hapax::StoreError>((entries, nodes, queues, locks))
        };
        let (entries, nodes, queues, locks) = app.call_store(reading).await?;
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for (what, count) in entries.iter().flat_map(|entry| &entry.line) {
            *counts.entry(what.clone()).or_default() += count;
        }
        let summary = LineSummary {
            counts,
            gateways: nodes.iter().map(ListedGateway::new).collect(),
            queues,
            locks: locks.map(|open| open.pending),
        };
        Ok(json_response(StatusCode::OK, &summary))
    })
    .await
}
