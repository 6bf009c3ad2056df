//! A page with a progress bar that survives a reload and a restart of the server.
//!
//! The page follows a job on hapax itself; this program only serves it, tells it where to listen,
//! and does the work that it shows.

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

/// How many jobs are worked on at once; each has a thread.
const WORKERS: usize = 16;

/// What the program needs to know.
#[derive(Clone)]
pub struct PageSettings {
    /// Where events go, and where the page gets them from.
    pub hapax: Hapax,
    /// How long each step of a job takes.
    pub pace: Duration,
}

struct App {
    settings: PageSettings,
    workers: Arc<Semaphore>,
}

/// Serves the page, until the process ends.
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

/// The whole page; the browser is told to load nothing else, and to talk to nobody else.
async fn page(State(app): State<Arc<App>>) -> Response {
    let policy = format!(
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
         connect-src 'self' {}",
        app.settings.hapax.url(),
    );
    let page = Html(include_str!("page.html"));
    ([(header::CONTENT_SECURITY_POLICY, policy)], page).into_response()
}

/// The page chose the job's id, so that it may ask again where an answer was lost.
#[derive(Deserialize)]
struct Start {
    job: String,
}

/// Starts a worker. A second one for the same job would say the same, and hapax would know it.
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

/// Where to follow the job. A real service would ask here who is asking: whoever has the link may
/// see the job.
async fn link(State(app): State<Arc<App>>, Path(job): Path<String>) -> Response {
    Json(json!({ "url": app.settings.hapax.link(worker::DOMAIN, &job) })).into_response()
}
