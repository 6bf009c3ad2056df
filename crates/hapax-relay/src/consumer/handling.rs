//! Handles one message, from its delivery to its acknowledgement.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use hapax_core::inbox::Inbox;
use hapax_core::{OnceError, RunContext, trace};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use super::{BrokerConsumer, InboundMessage, MessageDelivery, MessageHandlerError};

/// The longest reason of a dead letter, in characters.
const MAX_REASON: usize = 500;

/// The consumer's answer to the broker about a delivery.
enum DeliveryAction {
    Ack,
    RetryAfter(Duration),
    Bury(String),
}

impl BrokerConsumer {
    /// Handles one delivery. Frees the slot before telling the broker, which may be slow.
    pub(super) async fn handle(
        &self,
        delivery: Box<dyn MessageDelivery>,
        slot: OwnedSemaphorePermit,
    ) {
        let (result, action) = self.decide(&*delivery).await;
        drop(slot);
        let told = match action {
            DeliveryAction::Ack => delivery.ack().await,
            DeliveryAction::RetryAfter(after) => delivery.retry_after(after).await,
            DeliveryAction::Bury(reason) => {
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
            // The broker delivers the message again, and the inbox recognises it.
            Err(failure) => {
                self.count("error");
                tracing::warn!(source = self.source.name(), "the broker was not told: {failure}");
            }
        }
    }

    async fn decide(&self, delivery: &dyn MessageDelivery) -> (&'static str, DeliveryAction) {
        let message = delivery.message();
        if message.id.is_empty() {
            return ("dead", DeliveryAction::Bury("the message has no id".into()));
        }
        let Some(inbox) = &self.inbox else {
            let handled = self.run_handler(delivery, message).await;
            return self.settled(handled, message.attempt);
        };
        self.once(inbox, delivery, message).await
    }

    async fn once(
        &self,
        inbox: &Inbox,
        delivery: &dyn MessageDelivery,
        message: &InboundMessage,
    ) -> (&'static str, DeliveryAction) {
        let mut attempt = message.attempt;
        let handle = |run: RunContext| {
            // The inbox counts the attempts of all processes.
            attempt = run.attempt;
            let message =
                InboundMessage { attempt: run.attempt, fence: Some(run.fence), ..message.clone() };
            async move { self.run_handler(delivery, &message).await }
        };
        match inbox.once(&self.name, &message.id, handle).await {
            Ok(once) if once.replayed => ("duplicate", DeliveryAction::Ack),
            Ok(_) => self.settled(Ok(()), attempt),
            Err(OnceError::Failed(trouble)) => self.settled(Err(trouble), attempt),
            Err(OnceError::InProgress { retry_after }) => {
                ("busy", DeliveryAction::RetryAfter(retry_after))
            }
            Err(OnceError::Invalid(error)) => ("dead", DeliveryAction::Bury(error.to_string())),
            // The store failed, not the message: retry later, and count no attempt.
            Err(_) => ("error", DeliveryAction::RetryAfter(self.config.backoff.after(1))),
        }
    }

    /// Runs the handler and keeps the delivery alive meanwhile.
    async fn run_handler(
        &self,
        delivery: &dyn MessageDelivery,
        message: &InboundMessage,
    ) -> Result<(), MessageHandlerError> {
        let handled = trace::within(message.trace(), self.handler.handle(message));
        let handled = AssertUnwindSafe(handled).catch_unwind();
        let keep_alive = async {
            loop {
                sleep(delivery.keep_alive_interval()).await;
                // If this fails, the broker also delivers the message to another consumer.
                let _ = delivery.keep_alive().await;
            }
        };
        let panicked = || Err(MessageHandlerError::Transient("the handler panicked".into()));
        tokio::select! {
            biased;
            handled = handled => handled.unwrap_or_else(|_| panicked()),
            () = keep_alive => unreachable!("it never ends"),
        }
    }

    fn settled(
        &self,
        handled: Result<(), MessageHandlerError>,
        attempt: u32,
    ) -> (&'static str, DeliveryAction) {
        match handled {
            Ok(()) => ("done", DeliveryAction::Ack),
            Err(MessageHandlerError::Transient(_)) if attempt < self.config.max_attempts => {
                ("retried", DeliveryAction::RetryAfter(self.config.backoff.after(attempt)))
            }
            Err(trouble) => ("dead", DeliveryAction::Bury(trouble.to_string())),
        }
    }
}
