//! What every request passes before it is answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hapax::Tenant;
use hyper::header::ORIGIN;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::{Access, Caller};
use super::query;
use super::{body, headers, local_only};
use crate::serve::app::App;
use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::sse::{cors, signed_link::opens};
use crate::settings::Scope;

/// Refuses doubled headers, foreign hosts and sites, wrong tokens and too many requests at once.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match admit(&app, &request) {
        Ok(Admitted { caller, _place }) => {
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
        Err(problem) => {
            body::discard(request.into_body()).await;
            problem.into_response()
        }
    }
}

struct Admitted {
    caller: Option<Caller>,
    _place: Option<OwnedSemaphorePermit>,
}

fn admit(app: &App, request: &Request) -> Result<Admitted, Problem> {
    let (uri, fields) = (request.uri(), request.headers());
    headers::check(fields)?;
    let path = uri.path();
    if matches!(app.access, Access::Local(_)) {
        if cors::allowed(app, request.method(), path, fields).is_some() {
            let mut fields = fields.clone();
            fields.remove(ORIGIN);
            local_only::check(uri, request.version(), &fields)?;
        } else {
            local_only::check(uri, request.version(), fields)?;
        }
    }
    let (scope, places) = if beneath("/v1/operator", path) || beneath("/v1/queues", path) {
        // Whoever mends something must not have to queue up behind those who wait for it.
        (Scope::Admin, &app.operators)
    } else if beneath("/v1", path) {
        (Scope::Data, &app.in_flight)
    } else {
        if path == "/metrics" {
            app.access.admit(fields, Scope::Metrics)?;
        }
        return Ok(Admitted { caller: None, _place: None });
    };
    let caller = match link(request)? {
        Some(link) => app.access.admit_link(&link, app.settings.sse_secret.as_ref())?,
        None => app.access.admit(fields, scope)?,
    };
    let place = places.enter(&caller.tenant)?;
    Ok(Admitted { caller: Some(caller), _place: Some(place) })
}

/// A signed link that stands for a token, where one can.
fn link(request: &Request) -> Result<Option<String>, Problem> {
    if !opens(request.method(), request.uri().path()) {
        return Ok(None);
    }
    let query = query(request.uri())?;
    Ok(query.into_iter().find(|(name, _)| name == "access").map(|(_, link)| link))
}

fn beneath(root: &str, path: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// One semaphore for each tenant; tenants come from the settings, so that there are no others.
pub(crate) struct InFlight(HashMap<Tenant, Arc<Semaphore>>);

impl InFlight {
    pub(crate) fn new(access: &Access, places: usize) -> Self {
        let tenants = access.tenants().into_iter();
        Self(tenants.map(|tenant| (tenant, Arc::new(Semaphore::new(places)))).collect())
    }

    /// A place for one more request.
    pub(crate) fn enter(&self, tenant: &Tenant) -> Result<OwnedSemaphorePermit, Problem> {
        let place = self.0.get(tenant).and_then(|places| places.clone().try_acquire_owned().ok());
        place.ok_or_else(|| {
            Problem::new(
                ProblemKind::TooManyRequests,
                "as many requests as are allowed are being answered",
            )
            .retry_after(Duration::from_secs(1))
        })
    }
}
