//! Every route, and the layers around all of them.

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use bytes::Bytes;
use hyper::StatusCode;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::AppState;
use super::pages::{self, openapi};
use super::request::admission;
use super::response::raw_json_response;
use super::sse::cors;
use super::v1::operator::activity;
use super::v1::{commands, events, inbox, locks, operator, queues, records, session, tasks};
use crate::console;
use crate::daemon::{admin, method_not_allowed, with_common_layers};
use crate::problem::{Problem, ProblemKind};

pub(crate) fn router(app: &AppState) -> Router {
    let (router, mut api) = OpenApiRouter::with_openapi(openapi::ApiDoc::openapi())
        .routes(routes!(locks::take, locks::renew, locks::release, locks::show))
        .routes(routes!(records::read, records::write, records::merge, records::delete))
        .routes(routes!(
            commands::begin,
            commands::renew,
            commands::complete,
            commands::fail,
            commands::show
        ))
        .routes(routes!(inbox::receive, inbox::renew, inbox::settle, inbox::give_back))
        .routes(routes!(events::publish))
        .routes(routes!(events::follow_jobs))
        .routes(routes!(events::show_job))
        .routes(routes!(events::follow_job))
        .routes(routes!(queues::list))
        .routes(routes!(queues::depth))
        .routes(routes!(queues::dead))
        .routes(routes!(queues::reasons::dead_reasons))
        .routes(routes!(queues::bulk::requeue_many))
        .routes(routes!(queues::bulk::discard_many))
        .routes(routes!(queues::pause::pause))
        .routes(routes!(queues::pause::resume))
        .routes(routes!(queues::requeue))
        .routes(routes!(queues::discard))
        .routes(routes!(session::show, session::sign_in, session::sign_out))
        .routes(routes!(operator::audit::list_audit))
        .routes(routes!(operator::decide::decide_many))
        .routes(routes!(operator::tenants::list_tenants))
        .routes(routes!(operator::waiting::waiting))
        .routes(routes!(tasks::list_tasks))
        .routes(routes!(tasks::show_task, tasks::stop_task))
        .routes(routes!(operator::list))
        .routes(routes!(operator::locks::list_locks))
        .routes(routes!(operator::locks::force_release))
        .routes(routes!(operator::show, operator::settle, operator::release))
        .routes(routes!(operator::sweep))
        .routes(routes!(activity::overview::overview))
        .routes(routes!(activity::suppressed::follow))
        .routes(routes!(activity::suppressed::list))
        .routes(routes!(activity::conflicts::list))
        .routes(routes!(activity::key_life::show))
        .routes(routes!(activity::queues::list))
        .routes(routes!(activity::jobs::list))
        .routes(routes!(activity::jobs::show))
        .routes(routes!(activity::jobs::follow))
        .routes(routes!(activity::jobs::link))
        .routes(routes!(activity::streams::show))
        .routes(routes!(activity::line::show))
        .routes(routes!(admin::healthz))
        .routes(routes!(admin::readyz))
        .routes(routes!(admin::metrics))
        .split_for_parts();
    openapi::complete(&mut api);
    let api: Bytes = api.to_json().expect("the description becomes JSON").into();
    let router = router
        .route(
            "/openapi.json",
            get(|| async move { raw_json_response(StatusCode::OK, api.clone()) }),
        )
        .route("/docs", get(pages::docs_redirect))
        .route("/docs/", get(pages::docs_file))
        .route("/docs/{file}", get(pages::docs_file))
        .route("/", get(console::console_page))
        .route("/console/{*file}", get(console::console_file))
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), admission::admit))
        .layer(from_fn_with_state(app.clone(), cors::add_headers))
        .with_state(app.clone());
    with_common_layers(router)
}

/// Answers an unknown path; an empty key or name in it gets a better reason.
async fn no_route(request: Request) -> Problem {
    let parts: Vec<&str> = request.uri().path().split('/').skip(1).collect();
    let empty = match parts[..] {
        ["v1", "commands", "", _] | ["v1", "operator", "commands", "", _] => "operation",
        ["v1", "inbox", "", _] => "consumer",
        ["v1", "queues", "", ..] => "queue",
        ["v1", "locks" | "records", ""]
        | ["v1", "inbox" | "commands", _, ""]
        | ["v1", "operator", "commands", _, ""] => "key",
        _ => {
            let text = "/openapi.json lists the paths that there are";
            return Problem::new(ProblemKind::NotFound, text);
        }
    };
    Problem::invalid(format!("{empty} is empty; it takes 1 to 255 bytes"))
}
