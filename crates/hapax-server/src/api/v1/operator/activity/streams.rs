//! `/v1/operator/streams`: the event streams of a tenant.

use hapax::activity::{StreamCounts, open_streams};

use super::{HOUR, activity_since, now};
use crate::api::v1::audit::audited;
use crate::api::v1::prelude::*;

/// The event streams of a tenant.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct StreamSummary {
    /// How many are open at this node.
    pub(crate) open: u64,
    /// How many the tenant may open at one node.
    pub(crate) limit: u64,
    /// Why streams ended in the last hour, at all nodes.
    pub(crate) ended: EndedStreams,
    /// How often a client was told in the last hour that events are missing.
    pub(crate) gaps: u64,
    /// How many are open at each node, as it last reported.
    pub(crate) nodes: Vec<NodeStreams>,
}

/// Why event streams ended.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct EndedStreams {
    /// The last event was sent.
    pub(crate) complete: u64,
    /// The client left.
    pub(crate) client: u64,
    /// The client did not read, and was cut off.
    pub(crate) slow: u64,
    /// The signed link expired.
    pub(crate) expired: u64,
    /// The server stopped.
    pub(crate) shutdown: u64,
}

/// The event streams of one node.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct NodeStreams {
    /// The name of the node.
    pub(crate) node: String,
    /// How many are open.
    pub(crate) open: u64,
}

/// Show event streams.
#[utoipa::path(
    get, path = "/v1/operator/streams", operation_id = "show_streams", tag = "operator",
    responses((status = 200, body = StreamSummary, description = "The streams of this tenant; consoles count too")),
)]
pub(crate) async fn show(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "streams", request, |request, _| async move {
        request.expect_no_query()?;
        let since = now().saturating_sub(HOUR);
        let entries = app.call_store(activity_since(&app, &request.tenant, since)).await?;
        let mut ended = StreamCounts::default();
        entries.iter().for_each(|entry| ended.add_ended(&entry.streams));
        let nodes = open_streams(&entries).into_iter().filter(|(_, open)| *open > 0);
        let (open, limit) = app.streams.usage(&request.tenant);
        let summary = StreamSummary {
            open: open as u64,
            limit: limit as u64,
            ended: EndedStreams {
                complete: ended.complete,
                client: ended.client,
                slow: ended.slow,
                expired: ended.expired,
                shutdown: ended.shutdown,
            },
            gaps: ended.gaps,
            nodes: nodes.map(|(node, open)| NodeStreams { node, open }).collect(),
        };
        Ok(json_response(StatusCode::OK, &summary))
    })
    .await
}
