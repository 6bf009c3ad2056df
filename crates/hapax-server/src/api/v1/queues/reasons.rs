//! Dead letters by their reason.

use hapax::queue::{DeadReason, QueueName};

use super::rfc3339;
use crate::api::v1::audit::audited;
use crate::api::v1::prelude::*;

/// How many reasons are shown.
const MAX_REASONS: u32 = 100;

/// The reasons of a queue's dead letters.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct DeadReasons {
    /// The reasons, the most frequent first.
    pub(crate) reasons: Vec<DeadReasonBody>,
}

/// The dead letters with the same newest reason.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = DeadReason)]
pub(crate) struct DeadReasonBody {
    /// The reason.
    pub(crate) reason: String,
    /// How many dead letters have it.
    pub(crate) count: u64,
    /// When the first of them became a dead letter (RFC 3339).
    pub(crate) first_at: String,
    /// When the last of them became a dead letter (RFC 3339).
    pub(crate) last_at: String,
}

impl DeadReasonBody {
    fn new(counted: &DeadReason) -> Self {
        Self {
            reason: counted.reason.to_string(),
            count: counted.count,
            first_at: rfc3339(counted.first_at),
            last_at: rfc3339(counted.last_at),
        }
    }
}

/// Count the dead letters of a queue by their reason.
#[utoipa::path(
    get, path = "/v1/queues/{queue}/dead/reasons", operation_id = "dead_reasons", tag = "queues",
    responses((status = 200, body = DeadReasons, description = "The 100 most frequent reasons. Where there are very many dead letters, the oldest ones are counted")),
)]
pub(crate) async fn dead_reasons(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "reasons", request, |request, _| async move {
        request.expect_no_query()?;
        let queue = QueueName::new(request.segment(0))?;
        let counted = app.store.dead_reasons(&queue, Some(&request.tenant), MAX_REASONS);
        let counted = app.call_store(counted).await?;
        let reasons = counted.iter().map(DeadReasonBody::new).collect();
        Ok(json_response(StatusCode::OK, &DeadReasons { reasons }))
    })
    .await
}
