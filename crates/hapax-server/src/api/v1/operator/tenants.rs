//! `/v1/operator/tenants`: how much the caller's tenant has, and how much of its limits it uses.

use hapax::KeyKind;

use crate::api::v1::audit::audited;
use crate::api::v1::prelude::*;

/// How far keys are counted.
const MAX_COUNTED: u64 = 100_000;

/// The tenants that the caller may see.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct TenantList {
    /// The caller's own tenant.
    pub(crate) tenants: Vec<TenantUsage>,
}

/// What a tenant has, and uses on this node.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct TenantUsage {
    /// The name of the tenant.
    pub(crate) tenant: String,
    /// How many locks, commands and messages it has, counted up to 100,000; on Redis about so many, counted by
    /// a scan in the background. Null while that has found nothing out.
    #[schema(required)]
    pub(crate) keys: Option<u64>,
    /// Whether there are more keys than that; on Redis also more commands.
    pub(crate) keys_more: bool,
    /// How many commands are being run; null as above.
    #[schema(required)]
    pub(crate) pending: Option<u64>,
    /// How many commands have an unknown outcome; null as above.
    #[schema(required)]
    pub(crate) unknown: Option<u64>,
    /// How many commands failed; null as above.
    #[schema(required)]
    pub(crate) failed: Option<u64>,
    /// When these were counted, in milliseconds since 1970; null if that was just now.
    #[schema(required)]
    pub(crate) as_of: Option<u64>,
    /// How much it may use on this node.
    pub(crate) limits: TenantFigures,
    /// How much it uses on this node now.
    pub(crate) used: TenantFigures,
    /// How many requests this node refused since it started, because a limit was reached.
    pub(crate) refusals: u64,
}

/// Requests and event streams of a tenant.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct TenantFigures {
    /// Requests that are answered at once.
    pub(crate) in_flight_requests: u64,
    /// Event streams that are open at once.
    pub(crate) sse_connections: u64,
}

/// Show how much the tenant has, and how much of its limits it uses.
#[utoipa::path(
    get, path = "/v1/operator/tenants", operation_id = "list_tenants", tag = "operator",
    responses((status = 200, body = TenantList, description = "The caller's own tenant")),
)]
pub(crate) async fn list_tenants(State(app): State<AppState>, request: ApiRequest) -> ApiResult {
    audited(app.clone(), "tenants", request, |request, _| async move {
        request.expect_no_query()?;
        let tenant = &request.tenant;
        let keys = app.call_store(app.store.count_claims(tenant, MAX_COUNTED)).await?;
        let open = app.call_store(app.store.count_open(Some(tenant), KeyKind::Command)).await?;
        let found = match open {
            Some(_) => None,
            None => app.claim_counter.read(&app, tenant).await.found,
        };
        let keys = keys.or(found.map(|found| found.keys));
        let open = open.or(found.map(|found| found.commands));
        let (used_requests, refusals) = app.request_limits.usage(tenant);
        let (used_streams, stream_limit) = app.streams.usage(tenant);
        let usage = TenantUsage {
            tenant: tenant.as_str().to_owned(),
            keys,
            keys_more: match found {
                Some(found) => found.is_partial,
                None => keys.is_some_and(|keys| keys >= MAX_COUNTED),
            },
            pending: open.map(|open| open.pending),
            unknown: open.map(|open| open.unknown),
            failed: open.map(|open| open.failed),
            as_of: found.map(|found| found.as_of),
            limits: TenantFigures {
                in_flight_requests: app.settings.in_flight as u64,
                sse_connections: stream_limit as u64,
            },
            used: TenantFigures {
                in_flight_requests: used_requests as u64,
                sse_connections: used_streams as u64,
            },
            refusals,
        };
        Ok(json_response(StatusCode::OK, &TenantList { tenants: vec![usage] }))
    })
    .await
}
