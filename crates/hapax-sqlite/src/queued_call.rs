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

struct TypedCall<T, F> {
    work: F,
    answer: Option<StoreResult<T>>,
    caller: oneshot::Sender<StoreResult<T>>,
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
        // A call that panicked half-way counts as failed; the writer then rolls back.
        let answer = catch_unwind(AssertUnwindSafe(|| (self.work)(session)))
            .unwrap_or_else(|_| Err(internal_error("an operation panicked")));
        self.answer = Some(answer);
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

/// Sends `work` to the thread behind `queue`, wrapped into that thread's message type, and waits for
/// the answer.
pub(crate) async fn run_on_thread<T, F, M>(
    queue: &mpsc::Sender<M>,
    wrap: impl FnOnce(Box<dyn QueuedCall>) -> M,
    work: F,
) -> StoreResult<T>
where
    T: Send + 'static,
    F: FnMut(Session<'_>) -> StoreResult<T> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    let call = TypedCall { work, answer: None, caller };
    let sent = queue.send(wrap(Box::new(call))).await;
    sent.map_err(|_| internal_error("a thread of the store has ended"))?;
    answer.await.map_err(|_| internal_error("a thread of the store dropped an operation"))?
}
