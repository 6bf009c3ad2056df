//! A page with a progress bar that survives a reload and a restart of the server.
//!
//! The browser follows a job on hapax directly; this program only serves the page, gives it the
//! link to the job's events, and runs the job.

mod hapax;
mod link;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

pub use crate::hapax::{Access, Hapax};

/// Maximum number of concurrent jobs; each occupies a thread.
const WORKERS: usize = 16;

/// Settings of the example.
#[derive(Clone)]
pub struct PageSettings {
    /// The hapax server that stores the events and streams them to the page.
    pub hapax: Hapax,
    /// Duration of each step of a job.
    pub pace: Duration,
}

struct App {
    settings: PageSettings,
    workers: Arc<Semaphore>,
}

/// Serves the page until the process ends.
///
/// # Errors
///
/// When the listener fails.
pub async fn serve(listener: TcpListener, settings: PageSettings) -> anyhow::Result<()> {
    let app = Arc::new(App { settings, workers: Arc::new(Semaphore::new(WORKERS)) });
    let routes = Router::new()
        .route("/", get(page))
        .route("/jobs", post(start))
        .route("/jobs/{job}/link", get(link))
        .with_state(app);
    Ok(axum::serve(listener, routes).await?)
}

/// The page, with a content security policy that lets it load nothing else, and connect only to
/// this server and to hapax.
async fn page(State(app): State<Arc<App>>) -> Response {
    let policy = format!(
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
         connect-src 'self' {}",
        app.settings.hapax.url(),
    );
    let page = Html(include_str!("page.html"));
    ([(header::CONTENT_SECURITY_POLICY, policy)], page).into_response()
}

/// Body of `POST /jobs`. The page chooses the job's id, so that it can retry a lost request.
#[derive(Deserialize)]
struct Start {
    job: String,
}

/// Starts a worker. A second worker for the same job is harmless: hapax drops its duplicate events.
async fn start(State(app): State<Arc<App>>, Json(Start { job }): Json<Start>) -> Response {
    let Ok(place) = app.workers.clone().try_acquire_owned() else {
        let retry = [(header::RETRY_AFTER, "5")];
        return (StatusCode::SERVICE_UNAVAILABLE, retry, "all workers are busy").into_response();
    };
    let settings = app.settings.clone();
    spawn_blocking(move || {
        worker::run(&settings, &job);
        drop(place);
    });
    StatusCode::ACCEPTED.into_response()
}

/// The URL of the job's event stream. A real service would authorize the caller here, because the
/// link alone gives access to the job.
async fn link(State(app): State<Arc<App>>, Path(job): Path<String>) -> Response {
    Json(json!({ "url": app.settings.hapax.link(worker::DOMAIN, &job) })).into_response()
}
