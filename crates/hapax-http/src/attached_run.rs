//! A first run, polled by the future of its request, so that most requests need no task of their own.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

/// A run that goes on as a task of its own when this value is dropped: because the client has left, or because the response
/// is sent while the run still streams its body.
pub(crate) struct AttachedRun {
    /// `None` once it has ended.
    run: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Where it goes on: the value may be dropped by a thread that has no runtime.
    runtime: Handle,
}

impl AttachedRun {
    pub(crate) fn new(run: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { run: Some(Box::pin(run)), runtime: Handle::current() }
    }

    /// Runs until the response is sent; an error if the run ended without one, because it panicked.
    pub(crate) async fn response<T>(
        mut self,
        mut response: oneshot::Receiver<T>,
    ) -> Result<T, TryRecvError> {
        poll_fn(|cx| {
            if let Some(run) = &mut self.run {
                // A panic ends this run, as it would end a task, and not the connection with all its requests.
                match catch_unwind(AssertUnwindSafe(|| run.as_mut().poll(cx))) {
                    Ok(Poll::Pending) => {}
                    Ok(Poll::Ready(())) | Err(_) => self.run = None,
                }
            }
            // The sender is part of the run, so that nobody else has to wake this future.
            match response.try_recv() {
                Err(TryRecvError::Empty) => Poll::Pending,
                sent => Poll::Ready(sent),
            }
        })
        .await
    }
}

impl Drop for AttachedRun {
    fn drop(&mut self) {
        if let Some(run) = self.run.take() {
            self.runtime.spawn(run);
        }
    }
}
