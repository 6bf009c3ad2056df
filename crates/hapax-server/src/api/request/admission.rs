//! Admission: the checks that every request passes before its handler runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hapax::Tenant;
use hapax::activity::{self, Activity, RequestActivity};
use hyper::Method;
use hyper::header::{AUTHORIZATION, HeaderMap, ORIGIN};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::{AccessPolicy, ApiCaller, Credentials};
use super::parse_query;
use super::session::cookie::SessionId;
use super::{headers, local_only};
use crate::api::app::AppState;
use crate::api::sse::{cors, signed_link::accepts_signed_link};
use crate::daemon::RecordedAs;
use crate::problem::{Problem, ProblemKind};
use crate::settings::{ConsoleSwitch, TokenScope};

/// Refuses repeated headers, foreign hosts and sites, wrong tokens and too many concurrent requests.
pub(crate) async fn admit(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let admission = match check(&app, &request) {
        Ok(Identified::Nobody) => Ok(None),
        Ok(Identified::Caller(caller, limits)) => {
            let permit = limits.acquire(&caller);
            let permit = permit.inspect_err(|_| record_refusal(&caller.tenant, &request));
            permit.map(|permit| Some((caller, permit)))
        }
        Ok(Identified::Session(id, allowed)) => admit_session(&app, &id, allowed).await.map(Some),
        Err(problem) => Err(problem),
    };
    match admission {
        Ok(None) => next.run(request).await,
        Ok(Some((caller, _permit))) => {
            let tenant = caller.tenant.clone();
            request.extensions_mut().insert(caller);
            let mut response = next.run(request).await;
            response.extensions_mut().insert(tenant);
            response
        }
        Err(problem) => problem.into_response(),
    }
}

fn record_refusal(tenant: &Tenant, request: &Request) {
    match RecordedAs::of(request.uri().path()) {
        RecordedAs::StreamRequest => {
            let result = RequestActivity::Refused;
            activity::record(Activity::StreamRequest { tenant, result, took: None });
        }
        _ => activity::record(Activity::Refused(tenant)),
    }
}

/// Who sent a request, as far as its headers tell.
enum Identified<'a> {
    /// Whoever it is may send it.
    Nobody,
    Caller(ApiCaller, &'a TenantRequestLimits),
    /// Somebody with the cookie of a session, which must have one of these scopes.
    Session(SessionId, &'static [TokenScope]),
}

async fn admit_session(
    app: &AppState,
    id: &SessionId,
    allowed: &[TokenScope],
) -> Result<(ApiCaller, RequestPermit), Problem> {
    let rule = app.sessions.find(app, id).await?;
    let caller = ApiCaller::of_token(rule, Credentials::ConsoleSession, allowed)?;
    let permit = app.operator_limits.acquire(&caller)?;
    Ok((caller, permit))
}

fn check<'a>(app: &'a AppState, request: &Request) -> Result<Identified<'a>, Problem> {
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
    let is_session = path == "/v1/session";
    let is_console = is_session || path == "/" || is_beneath("/console", path);
    if is_console && app.settings.console == ConsoleSwitch::Off {
        let text = "the console of this server is switched off (`--console off`)";
        return Err(Problem::new(ProblemKind::NotFound, text));
    }
    let (allowed, limits) = if is_beneath("/v1/operator", path) || is_beneath("/v1/queues", path) {
        let allowed: &[_] = match *request.method() {
            Method::GET | Method::HEAD => &[TokenScope::Read, TokenScope::Admin],
            _ => &[TokenScope::Admin],
        };
        if let Some(id) = session_id(app, fields)? {
            id.check_page(request.method(), uri, fields)?;
            return Ok(Identified::Session(id, allowed));
        }
        // Operators have limits of their own: a repair must not wait behind the requests it unblocks.
        (allowed, &app.operator_limits)
    } else if is_beneath("/v1", path) && !is_session {
        (&[TokenScope::Data][..], &app.request_limits)
    } else {
        if path == "/metrics" {
            app.access.authenticate(fields, &[TokenScope::Metrics, TokenScope::Admin])?;
        }
        return Ok(Identified::Nobody);
    };
    let caller = match access_parameter(request)? {
        Some(link) => app.access.authenticate_link(&link, app.settings.sse_secret.as_ref())?,
        None => app.access.authenticate(fields, allowed)?,
    };
    Ok(Identified::Caller(caller, limits))
}

/// The session of a request that has no token of its own, where the server has tokens and a console.
pub(crate) fn session_id(
    app: &AppState,
    headers: &HeaderMap,
) -> Result<Option<SessionId>, Problem> {
    let is_usable = matches!(app.access, AccessPolicy::Tokens(_))
        && app.settings.console == ConsoleSwitch::On
        && !headers.contains_key(AUTHORIZATION);
    if is_usable { SessionId::from_headers(headers) } else { Ok(None) }
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
    most: usize,
    refusals: AtomicU64,
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
            (tenant, RequestLimit { all, of_links, most: limit, refusals: AtomicU64::new(0) })
        };
        Self(access.tenants().into_iter().map(limits).collect())
    }

    /// How many requests of a tenant are being answered, and how many were refused so far.
    pub(crate) fn usage(&self, tenant: &Tenant) -> (usize, u64) {
        self.0.get(tenant).map_or((0, 0), |limit| {
            let used = limit.most.saturating_sub(limit.all.available_permits());
            (used, limit.refusals.load(Ordering::Relaxed))
        })
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
            if let Some(limit) = self.0.get(&caller.tenant) {
                limit.refusals.fetch_add(1, Ordering::Relaxed);
            }
            let text = "the limit of concurrent requests is reached";
            Problem::new(ProblemKind::TooManyRequests, text).retry_after(Duration::from_secs(1))
        })
    }
}
