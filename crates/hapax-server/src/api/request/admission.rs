//! Admission: the checks that every request passes before its handler runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hapax::Tenant;
use hapax::activity::{self, Activity};
use hyper::header::ORIGIN;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::{AccessPolicy, ApiCaller};
use super::parse_query;
use super::{headers, local_only};
use crate::api::app::AppState;
use crate::api::sse::{cors, signed_link::accepts_signed_link};
use crate::problem::{Problem, ProblemKind};
use crate::settings::TokenScope;

/// Refuses repeated headers, foreign hosts and sites, wrong tokens and too many concurrent requests.
pub(crate) async fn admit(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    match check(&app, &request) {
        Ok(Admission { caller, _permit }) => {
            let tenant = caller.as_ref().map(|caller| caller.tenant.clone());
            if let Some(caller) = caller {
                request.extensions_mut().insert(caller);
            }
            let mut response = next.run(request).await;
            if let Some(tenant) = tenant {
                response.extensions_mut().insert(tenant);
            }
            response
        }
        Err(problem) => problem.into_response(),
    }
}

struct Admission {
    caller: Option<ApiCaller>,
    _permit: Option<RequestPermit>,
}

fn check(app: &AppState, request: &Request) -> Result<Admission, Problem> {
    let (uri, fields) = (request.uri(), request.headers());
    headers::check(fields)?;
    let path = uri.path();
    if matches!(app.access, AccessPolicy::LocalOnly(_)) {
        let mut fields = fields.clone();
        if cors::allowed_origin(app, request.method(), path, &fields).is_some() {
            fields.remove(ORIGIN);
        }
        local_only::check(uri, request.version(), &fields)?;
        // Probes may come through a proxy; health reveals nothing.
        if !["/healthz", "/readyz"].contains(&path) {
            local_only::refuse_forwarded(&fields)?;
        }
    }
    let (scope, limits) = if is_beneath("/v1/operator", path) || is_beneath("/v1/queues", path) {
        // Operators have limits of their own: a repair must not wait behind the requests it unblocks.
        (TokenScope::Admin, &app.operator_limits)
    } else if is_beneath("/v1", path) {
        (TokenScope::Data, &app.request_limits)
    } else {
        if path == "/metrics" {
            app.access.authenticate(fields, TokenScope::Metrics)?;
        }
        return Ok(Admission { caller: None, _permit: None });
    };
    let caller = match access_parameter(request)? {
        Some(link) => app.access.authenticate_link(&link, app.settings.sse_secret.as_ref())?,
        None => app.access.authenticate(fields, scope)?,
    };
    let permit = limits.acquire(&caller);
    let permit = permit.inspect_err(|_| activity::record(Activity::Refused(&caller.tenant)))?;
    Ok(Admission { caller: Some(caller), _permit: Some(permit) })
}

/// The `access` query parameter (a signed link), for paths that accept one instead of a token.
fn access_parameter(request: &Request) -> Result<Option<String>, Problem> {
    if !accepts_signed_link(request.method(), request.uri().path()) {
        return Ok(None);
    }
    let query = parse_query(request.uri())?;
    Ok(query.into_iter().find(|(name, _)| name == "access").map(|(_, link)| link))
}

fn is_beneath(root: &str, path: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Limits the concurrent requests of each tenant. All tenants are known from the settings.
pub(crate) struct TenantRequestLimits(HashMap<Tenant, RequestLimit>);

struct RequestLimit {
    all: Arc<Semaphore>,
    /// The part of them that signed links may take, so that their holders leave some to the tenant.
    of_links: Arc<Semaphore>,
}

/// A request that is being answered; of a signed link, it takes one of the links' share too.
pub(crate) struct RequestPermit {
    _request: OwnedSemaphorePermit,
    _link: Option<OwnedSemaphorePermit>,
}

impl TenantRequestLimits {
    pub(crate) fn new(access: &AccessPolicy, limit: usize) -> Self {
        let limits = |tenant| {
            let [all, of_links] =
                [limit, limit.div_ceil(4)].map(|limit| Arc::new(Semaphore::new(limit)));
            (tenant, RequestLimit { all, of_links })
        };
        Self(access.tenants().into_iter().map(limits).collect())
    }

    /// Takes a permit for one more request of this caller's tenant.
    pub(crate) fn acquire(&self, caller: &ApiCaller) -> Result<RequestPermit, Problem> {
        let permit = self.0.get(&caller.tenant).and_then(|limit| {
            let _link = match caller.link {
                Some(_) => Some(limit.of_links.clone().try_acquire_owned().ok()?),
                None => None,
            };
            Some(RequestPermit { _request: limit.all.clone().try_acquire_owned().ok()?, _link })
        });
        permit.ok_or_else(|| {
            let text = "the limit of concurrent requests is reached";
            Problem::new(ProblemKind::TooManyRequests, text).retry_after(Duration::from_secs(1))
        })
    }
}
