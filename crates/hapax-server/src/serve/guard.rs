//! What every request passes before it is answered.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hapax::Tenant;
use tokio::sync::OwnedSemaphorePermit;

use super::app::App;
use super::auth::Access;
use super::problem::Problem;
use super::{body, headers, local_only};
use crate::settings::Scope;

/// Refuses doubled headers, foreign hosts and sites, wrong tokens and too many requests at once.
pub(crate) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match admit(&app, &request) {
        Ok(Admitted { tenant, _place }) => {
            if let Some(tenant) = &tenant {
                request.extensions_mut().insert(tenant.clone());
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
    tenant: Option<Tenant>,
    _place: Option<OwnedSemaphorePermit>,
}

fn admit(app: &App, request: &Request) -> Result<Admitted, Problem> {
    let (uri, fields) = (request.uri(), request.headers());
    headers::check(fields)?;
    if matches!(app.access, Access::Local) {
        local_only::check(uri, request.version(), fields)?;
    }
    let path = uri.path();
    if path == "/v1" || path.starts_with("/v1/") {
        let tenant = app.access.admit(fields, Scope::Data)?;
        let place = app.in_flight.enter(&tenant)?;
        return Ok(Admitted { tenant: Some(tenant), _place: Some(place) });
    }
    if path == "/metrics" {
        app.access.admit(fields, Scope::Metrics)?;
    }
    Ok(Admitted { tenant: None, _place: None })
}
