//! What every request passes before it is answered.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::ORIGIN;
use tokio::sync::OwnedSemaphorePermit;

use super::app::App;
use super::auth::{Access, Caller};
use super::call::query;
use super::problem::Problem;
use super::sse::{cors, link::opens};
use super::{body, headers, local_only};
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
