//! A store call on its way to a thread that owns a connection, and its answer on the way back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hapax_core::{StoreError, StoreResult};
use tokio::sync::{mpsc, oneshot};

use crate::error::internal_error;
use crate::session::Session;

/// A call that waits for a connection.
pub(crate) trait QueuedCall: Send {
    /// Whether the caller stopped waiting for the answer.
    fn is_abandoned(&self) -> bool;

    /// Runs the call and keeps its answer until [`QueuedCall::send_answer`]. A call whose transaction
    /// was rolled back may run again.
    fn run(&mut self, session: Session<'_>);

    /// The error of [`QueuedCall::run`], if it failed.
    fn error(&self) -> Option<&StoreError>;

    /// Sends the answer of [`QueuedCall::run`] to the caller.
    fn send_answer(self: Box<Self>);

    /// Sends `error` to the caller, whatever the call's own answer was.
    fn fail(self: Box<Self>, error: StoreError);
}

/// Where the answer of a call goes.
pub(crate) type Caller<T> = oneshot::Sender<StoreResult<T>>;

/// A call that one thread answers.
pub(crate) struct TypedCall<T, F> {
    work: F,
    answer: Option<StoreResult<T>>,
    caller: Caller<T>,
}

impl<T, F> TypedCall<T, F> {
    pub(crate) fn new(work: F, caller: Caller<T>) -> Self {
        Self { work, answer: None, caller }
    }
}

impl<T, F> QueuedCall for TypedCall<T, F>
where
    T: Send,
    F: FnMut(Session<'_>) -> StoreResult<T> + Send,
{
    fn is_abandoned(&self) -> bool {
        self.caller.is_closed()
    }

    fn run(&mut self, session: Session<'_>) {
        self.answer = Some(catch_panic(|| (self.work)(session)));
    }

    fn error(&self) -> Option<&StoreError> {
        self.answer.as_ref()?.as_ref().err()
    }

    fn send_answer(self: Box<Self>) {
        if let Some(answer) = self.answer {
            // The send fails where the caller's timeout has passed; it was told so by then.
            let _ = self.caller.send(answer);
        }
    }

    fn fail(self: Box<Self>, error: StoreError) {
        let _ = self.caller.send(Err(error));
    }
}

/// A call that panicked half-way counts as failed; the writer then rolls back.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> StoreResult<T>) -> StoreResult<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(internal_error("an operation panicked")))
}

/// Sends a call to the thread behind `queue`, as `message` makes it for its caller, and waits for the answer.
pub(crate) async fn run_on_thread<T, M>(
    queue: &mpsc::Sender<M>,
    message: impl FnOnce(Caller<T>) -> M,
) -> StoreResult<T> {
    let (caller, answer) = oneshot::channel();
    let sent = queue.send(message(caller)).await;
    sent.map_err(|_| internal_error("a thread of the store has ended"))?;
    answer.await.map_err(|_| internal_error("a thread of the store dropped an operation"))?
}
