//! A service that keeps a lock for each key, refuses while it is held, and can crash.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use example_check_target::routes;
use hyper::StatusCode;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::service::serve;

/// How the service answers a request whose key is locked.
#[derive(Clone, Copy)]
pub(super) struct LockedAnswer {
    pub(super) status: u16,
    /// For so long it waits for the lock first.
    pub(super) wait: Duration,
    /// Whether it tells a request that a crash cut off from one that runs.
    pub(super) knows_crashes: bool,
}

pub(super) const CONFLICT: LockedAnswer =
    LockedAnswer { status: 409, wait: Duration::ZERO, knows_crashes: false };

#[derive(Clone)]
enum KeyState {
    Running,
    CutOff,
    Answered(StatusCode, Bytes),
}

type KeyStates = Arc<Mutex<HashMap<Vec<u8>, KeyState>>>;

#[derive(Clone)]
struct LockingService {
    states: KeyStates,
    crash: Arc<Notify>,
    locked: LockedAnswer,
}

pub(super) struct StartedService {
    pub(super) url: String,
    crash_file: PathBuf,
    _folder: tempfile::TempDir,
}

impl StartedService {
    /// A command that makes the service drop all that it runs, as a crash does, and ends when that has happened.
    pub(super) fn restart_command(&self) -> String {
        let file = self.crash_file.display();
        format!("touch {file}; while [ -e {file} ]; do sleep 0.02; done")
    }
}

/// Starts the service; ends with the test's runtime.
pub(super) async fn start(locked: LockedAnswer) -> StartedService {
    let folder = tempfile::tempdir().expect("a folder");
    let crash_file = folder.path().join("crash");
    let service = LockingService { states: Arc::default(), crash: Arc::default(), locked };
    tokio::spawn(crash_when_asked(service.clone(), crash_file.clone()));
    let url = serve(routes().layer(from_fn_with_state(service, lock_and_run))).await;
    StartedService { url, crash_file, _folder: folder }
}

async fn crash_when_asked(service: LockingService, file: PathBuf) {
    loop {
        sleep(Duration::from_millis(10)).await;
        if !file.exists() {
            continue;
        }
        for state in service.states.lock().expect("the map").values_mut() {
            if matches!(state, KeyState::Running) {
                *state = KeyState::CutOff;
            }
        }
        service.crash.notify_waiters();
        std::fs::remove_file(&file).expect("it is there");
    }
}

async fn lock_and_run(
    State(service): State<LockingService>,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = request.headers().get("idempotency-key").map(|key| key.as_bytes().to_vec())
    else {
        return next.run(request).await;
    };
    let known = service.states.lock().expect("the map").get(&key).cloned();
    let states = service.states.clone();
    let set = move |key: &[u8], state| states.lock().expect("the map").insert(key.to_vec(), state);
    match known {
        Some(KeyState::Answered(status, body)) => (status, body).into_response(),
        Some(state) => {
            sleep(service.locked.wait).await;
            let name = String::from_utf8_lossy(&key).into_owned();
            let status = StatusCode::from_u16(service.locked.status).expect("a status");
            match state {
                KeyState::CutOff if service.locked.knows_crashes => {
                    (status, format!("nobody knows whether {name} was executed")).into_response()
                }
                _ => (status, format!("a request with the key {name} is running")).into_response(),
            }
        }
        None => {
            set(&key, KeyState::Running);
            // It goes on when the client leaves.
            let running = tokio::spawn(async move {
                let (head, body) = next.run(request).await.into_parts();
                (head.status, to_bytes(body, usize::MAX).await.expect("a body"))
            });
            let abort = running.abort_handle();
            let watched = tokio::spawn(async move {
                tokio::select! {
                    () = service.crash.notified() => {
                        abort.abort();
                        StatusCode::BAD_GATEWAY.into_response()
                    }
                    answer = running => {
                        let (status, body) = answer.expect("no panic");
                        set(&key, KeyState::Answered(status, body.clone()));
                        (status, body).into_response()
                    }
                }
            });
            watched.await.expect("no panic")
        }
    }
}
