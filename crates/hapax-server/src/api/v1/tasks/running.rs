//! The tasks that a node runs, and the last ones that have ended.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax::{Clock, SystemClock, Tenant, Token};
use tokio::task::JoinHandle;

use super::TaskBody;
use crate::api::app::AppState;
use crate::api::v1::audit::{AuditSubject, BegunAction};
use crate::problem::{Problem, ProblemKind};

/// How many tasks of one tenant run at once.
const MAX_RUNNING: usize = 4;
/// How many tasks are remembered.
const MAX_REMEMBERED: usize = 100;
/// How many calls in a row may fail before a task gives up.
const MAX_FAILURES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How long a shutdown waits for tasks to write their end into the audit log.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The tasks of this node.
#[derive(Default)]
pub(crate) struct OperatorTasks {
    tasks: Mutex<VecDeque<Arc<RunningTask>>>,
    running: Arc<Mutex<HashMap<Tenant, usize>>>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

/// One of the few tasks that a tenant may run at once; given back on drop.
pub(super) struct TaskSlot {
    running: Arc<Mutex<HashMap<Tenant, usize>>>,
    tenant: Tenant,
}

impl Drop for TaskSlot {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        let left = running.get(&self.tenant).copied().unwrap_or_default().saturating_sub(1);
        match left {
            0 => running.remove(&self.tenant),
            left => running.insert(self.tenant.clone(), left),
        };
    }
}

/// What a task is to do.
pub(crate) struct TaskSubject {
    pub(crate) action: &'static str,
    pub(crate) subject: AuditSubject,
    pub(crate) total: Option<u64>,
}

/// A task that runs, or has ended.
pub(crate) struct RunningTask {
    id: String,
    tenant: Tenant,
    by: String,
    started_at: u64,
    task: TaskSubject,
    progress: Mutex<TaskProgress>,
    stop: AtomicBool,
}

struct TaskProgress {
    done: u64,
    failed: u64,
    state: &'static str,
    error: Option<String>,
    /// Frees the place of the task when it has ended.
    slot: Option<TaskSlot>,
}

impl RunningTask {
    pub(super) fn new(task: TaskSubject, tenant: &Tenant, by: &str, slot: TaskSlot) -> Arc<Self> {
        let (state, slot) = ("running", Some(slot));
        Arc::new(Self {
            id: Token::random().as_str()[..16].to_owned(),
            tenant: tenant.clone(),
            by: by.to_owned(),
            started_at: SystemClock.now().0,
            task,
            progress: Mutex::new(TaskProgress { done: 0, failed: 0, state, error: None, slot }),
            stop: AtomicBool::new(false),
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn action(&self) -> &'static str {
        self.task.action
    }

    pub(super) fn subject(&self) -> &AuditSubject {
        &self.task.subject
    }

    pub(super) fn body(&self) -> TaskBody {
        let progress = lock(&self.progress);
        TaskBody {
            id: self.id.clone(),
            action: self.task.action.to_owned(),
            subject: self.task.subject.clone(),
            by: self.by.clone(),
            started_at: self.started_at,
            total: self.task.total,
            done: progress.done,
            failed: progress.failed,
            state: progress.state.to_owned(),
            error: progress.error.clone(),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Whether the task is to end before its next row.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Counts a row that was changed, or was not.
    pub(crate) fn count(&self, is_done: bool) {
        let mut progress = lock(&self.progress);
        match is_done {
            true => progress.done += 1,
            false => progress.failed += 1,
        }
    }

    /// Repeats a store call that fails, a few times and with pauses: it must be safe to repeat.
    pub(crate) async fn call_store<T, E: Into<Problem>, F: Future<Output = Result<T, E>>>(
        &self,
        app: &AppState,
        call: impl Fn() -> F,
    ) -> Result<T, Problem> {
        let mut failures = 0;
        loop {
            match app.call_store(call()).await {
                Ok(value) => return Ok(value),
                Err(problem) => {
                    failures += 1;
                    if failures >= MAX_FAILURES || self.is_stopped() || !problem.is_retryable() {
                        return Err(problem);
                    }
                    tokio::time::sleep(FIRST_PAUSE * 2_u32.pow(failures)).await;
                }
            }
        }
    }

    fn end(&self, state: &'static str, outcome: Result<bool, Problem>) {
        let error = outcome.err().map(|problem| problem.detail().to_owned());
        let mut progress = lock(&self.progress);
        (progress.state, progress.error, progress.slot) = (state, error, None);
    }
}

impl OperatorTasks {
    /// Takes the place of one more task of this tenant.
    pub(super) fn reserve(&self, tenant: &Tenant) -> Result<TaskSlot, Problem> {
        let mut running = lock(&self.running);
        let count = running.entry(tenant.clone()).or_default();
        if *count >= MAX_RUNNING {
            let text = format!(
                "{MAX_RUNNING} tasks of this tenant run already; wait for one of them, or stop it \
                 with DELETE /v1/operator/tasks/{{id}}"
            );
            let problem = Problem::new(ProblemKind::TooManyRequests, text);
            return Err(problem.retry_after(Duration::from_secs(5)));
        }
        *count += 1;
        Ok(TaskSlot { running: self.running.clone(), tenant: tenant.clone() })
    }

    /// Runs a task to its end (true) or until it is stopped (false), and appends its result to the audit
    /// log.
    pub(super) fn spawn(
        &self,
        app: &AppState,
        begun: BegunAction,
        task: Arc<RunningTask>,
        run: impl Future<Output = Result<bool, Problem>> + Send + 'static,
    ) {
        let mut tasks = lock(&self.tasks);
        tasks.push_front(task.clone());
        while tasks.len() > MAX_REMEMBERED {
            let oldest = tasks.len() - 1;
            let ended = tasks.iter().rposition(|task| lock(&task.progress).slot.is_none());
            tasks.remove(ended.unwrap_or(oldest));
        }
        let readiness = app.readiness.clone();
        let running = tokio::spawn(async move {
            let stopping = async {
                readiness.stopping().await;
                task.stop();
                std::future::pending().await
            };
            let outcome: Result<bool, Problem> = tokio::select! {
                outcome = run => outcome,
                never = stopping => never,
            };
            let state = match &outcome {
                Err(_) => "failed",
                Ok(true) => "done",
                Ok(false) => "stopped",
            };
            let body = task.body();
            let counts = |subject: &mut AuditSubject| {
                (subject.done, subject.failed) = (Some(body.done), Some(body.failed));
            };
            // The end is shown after the audit log has it.
            begun.end(state, counts).await;
            task.end(state, outcome);
        });
        let mut handles = lock(&self.handles);
        handles.retain(|handle| !handle.is_finished());
        handles.push(running);
    }

    /// The tasks of a tenant, newest first.
    pub(super) fn list(&self, tenant: &Tenant) -> Vec<TaskBody> {
        let tasks = lock(&self.tasks);
        tasks.iter().filter(|task| task.tenant == *tenant).map(|task| task.body()).collect()
    }

    pub(super) fn find(&self, tenant: &Tenant, id: &str) -> Option<Arc<RunningTask>> {
        let tasks = lock(&self.tasks);
        tasks.iter().find(|task| task.tenant == *tenant && task.id == id).cloned()
    }

    /// Stops every task after the row that it is at, and waits until the audit log has their ends.
    pub(crate) async fn stop_all(&self) {
        lock(&self.tasks).iter().for_each(|task| task.stop());
        let handles = std::mem::take(&mut *lock(&self.handles));
        let ending = async {
            for handle in handles {
                let _ = handle.await;
            }
        };
        let _ = tokio::time::timeout(STOP_TIMEOUT, ending).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
