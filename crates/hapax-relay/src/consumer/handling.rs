//! One message, from its delivery to its end.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::inbox::{Handled, Inbox, InboxError, OnceError, RunContext};
use hapax_core::trace;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::{InboundMessage, Inner, MessageDelivery, MessageHandlerError};

/// The longest that a dead letter's reason is.
const MAX_REASON: usize = 500;

/// What is to become of a delivery.
enum Fate {
    Ack,
    RetryHint(Duration),
    Bury(String),
}

impl Inner {
    /// The slot is free again when the handler is done; the broker may take its time.
    pub(super) async fn handle(
        &self,
        delivery: Box<dyn MessageDelivery>,
        slot: OwnedSemaphorePermit,
    ) {
        let (result, fate) = self.fate(&*delivery).await;
        drop(slot);
        let told = match fate {
            Fate::Ack => delivery.ack().await,
            Fate::RetryHint(after) => delivery.again(after).await,
            Fate::Bury(reason) => {
                let reason: String = reason.chars().take(MAX_REASON).collect();
                tracing::warn!(
                    source = self.source.name(),
                    "a message became a dead letter: {reason}"
                );
                delivery.bury(&reason).await
            }
        };
        match told {
            Ok(()) => self.count(result),
            // It is delivered again, and the inbox knows it.
            Err(failure) => {
                self.count("error");
                tracing::warn!(source = self.source.name(), "the broker was not told: {failure}");
            }
        }
    }

    async fn fate(&self, delivery: &dyn MessageDelivery) -> (&'static str, Fate) {
        let message = delivery.message();
        if message.id.is_empty() {
            return ("dead", Fate::Bury("the message has no id".into()));
        }
        let Some(inbox) = &self.inbox else {
            let handled = self.run(delivery, message).await;
            return self.settled(handled, message.attempt);
        };
        self.once(inbox, delivery, message).await
    }

    async fn once(
        &self,
        inbox: &Inbox,
        delivery: &dyn MessageDelivery,
        message: &InboundMessage,
    ) -> (&'static str, Fate) {
        let mut attempt = message.attempt;
        let handle = |run: RunContext| {
            // What the inbox has counted is every try of anybody.
            attempt = run.attempt;
            let message =
                InboundMessage { attempt: run.attempt, fence: Some(run.fence), ..message.clone() };
            async move { self.run(delivery, &message).await }
        };
        match inbox.once(&self.name, &message.id, handle).await {
            Ok(Handled::First(())) => self.settled(Ok(()), attempt),
            Ok(Handled::Duplicate) => ("duplicate", Fate::Ack),
            Err(OnceError::Failed(trouble)) => self.settled(Err(trouble), attempt),
            Err(OnceError::InProgress { retry_after }) => ("busy", Fate::RetryHint(retry_after)),
            Err(OnceError::Inbox(InboxError::Invalid(error))) => {
                ("dead", Fate::Bury(error.to_string()))
            }
            // Nobody's fault: it waits, and is not counted.
            Err(_) => ("error", Fate::RetryHint(self.config.backoff.after(1))),
        }
    }

    /// Runs the handler, and says all the while that somebody is at it.
    async fn run(
        &self,
        delivery: &dyn MessageDelivery,
        message: &InboundMessage,
    ) -> Result<(), MessageHandlerError> {
        let handled = trace::within(message.trace(), self.handler.handle(message));
        let handled = AssertUnwindSafe(handled).catch_unwind();
        let at_it = async {
            loop {
                sleep(delivery.every()).await;
                // Where the broker does not hear it, it delivers the message to another one as well.
                let _ = delivery.still_at_it().await;
            }
        };
        let handled = or_never(handled, at_it).await;
        handled
            .unwrap_or_else(|_| Err(MessageHandlerError::Transient("the handler panicked".into())))
    }

    fn settled(
        &self,
        handled: Result<(), MessageHandlerError>,
        attempt: u32,
    ) -> (&'static str, Fate) {
        match handled {
            Ok(()) => ("done", Fate::Ack),
            Err(MessageHandlerError::Transient(_)) if attempt < self.config.max_attempts => {
                ("retried", Fate::RetryHint(self.config.backoff.after(attempt)))
            }
            Err(trouble) => ("dead", Fate::Bury(trouble.to_string())),
        }
    }
}

/// The first one's outcome; the second one never has any.
async fn or_never<T>(first: impl Future<Output = T>, never: impl Future<Output = ()>) -> T {
    tokio::pin!(first);
    tokio::select! {
        biased;
        outcome = &mut first => outcome,
        () = never => first.await,
    }
}
