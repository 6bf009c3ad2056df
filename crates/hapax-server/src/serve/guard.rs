//! What every request passes before it is answered.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;

use super::app::App;
use super::auth::{Access, Caller};
use super::problem::Problem;
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
    if matches!(app.access, Access::Local(_)) {
        local_only::check(uri, request.version(), fields)?;
    }
    let path = uri.path();
    let (scope, places) = if beneath("/v1/operator", path) {
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
    let caller = app.access.admit(fields, scope)?;
    let place = places.enter(&caller.tenant)?;
    Ok(Admitted { caller: Some(caller), _place: Some(place) })
}

fn beneath(root: &str, path: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
