//! One call on its way to a thread that owns a connection, and its answer on the way back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hapax_core::StoreError;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::bug;

/// A call that waits for a connection.
pub(crate) trait Job: Send {
    /// Whether nobody waits for the answer any more.
    fn is_abandoned(&self) -> bool;

    /// Does it, and keeps the answer.
    fn run(&mut self, connection: &Connection);

    /// What went wrong when it ran.
    fn error(&self) -> Option<&StoreError>;

    /// Gives the kept answer to the caller.
    fn answer(self: Box<Self>);

    /// Gives this to the caller instead.
    fn fail(self: Box<Self>, error: StoreError);
}

struct Call<T, F> {
    work: Option<F>,
    answer: Option<Result<T, StoreError>>,
    caller: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job for Call<T, F>
where
    T: Send,
    F: FnOnce(&Connection) -> Result<T, StoreError> + Send,
{
    fn is_abandoned(&self) -> bool {
        self.caller.is_closed()
    }

    fn run(&mut self, connection: &Connection) {
        let Some(work) = self.work.take() else { return };
        // What a panic left half done, the writer undoes.
        let answer = catch_unwind(AssertUnwindSafe(|| work(connection)))
            .unwrap_or_else(|_| Err(bug("an operation panicked")));
        self.answer = Some(answer);
    }

    fn error(&self) -> Option<&StoreError> {
        self.answer.as_ref()?.as_ref().err()
    }

    fn answer(self: Box<Self>) {
        if let Some(answer) = self.answer {
            // A caller that has gone meanwhile was told that the outcome is unknown.
            let _ = self.caller.send(answer);
        }
    }

    fn fail(self: Box<Self>, error: StoreError) {
        let _ = self.caller.send(Err(error));
    }
}

/// Sends `work` to the thread behind `queue`, made a message by `wrap`, and waits for its answer.
pub(crate) async fn call<T, F, M>(
    queue: &mpsc::Sender<M>,
    wrap: impl FnOnce(Box<dyn Job>) -> M,
    work: F,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
{
    let (caller, answer) = oneshot::channel();
    let job = Call { work: Some(work), answer: None, caller };
    queue.send(wrap(Box::new(job))).await.map_err(|_| bug("a thread of the store has ended"))?;
    answer.await.map_err(|_| bug("a thread of the store dropped an operation"))?
}
