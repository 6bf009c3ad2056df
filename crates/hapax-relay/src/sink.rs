//! The sink, where a relay delivers rows.

use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;

use crate::OutboundMessage;

/// Where a [`Relay`](crate::Relay) delivers: a broker, a webhook, a file.
///
/// The relay does the rest: it keeps the order of each key, sends different keys at once, retries,
/// gives up, and waits while the sink is down. A sink sends one message and reports honestly what
/// happened to it.
///
/// # Laws
///
/// 1. `Ok` means that the message is where it survives: acknowledged, not merely written to a socket.
/// 2. The message travels with its id ([`OutboundMessage::id`]), the same one however often it is sent,
///    so that the receiver can tell a second delivery from a second message.
/// 3. [`DeliveryError`] tells an answer about the message from one about the sink, and both from silence.
///    Only the first always counts as an attempt of that row.
/// 4. `send` is called from many tasks at once, up to [`Sink::max_in_flight`], and never twice at once
///    for rows of the same key. The relay drops the call when it takes too long.
///
/// # Writing one
///
/// ```
/// use hapax_relay::{DeliveryError, OutboundMessage, Relay, Sink};
/// use hapax_core::{memory::MemoryStore, queue::*, Tenant};
/// use std::sync::{Arc, Mutex};
///
/// /// Prints on paper.
/// #[derive(Default)]
/// struct Printer { pages: Mutex<Vec<String>> }
///
/// #[async_trait::async_trait]
/// impl Sink for Printer {
///     fn name(&self) -> &'static str {
///         "printer"
///     }
///
///     async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
///         // Will never be printable: no use in trying again.
///         let text = std::str::from_utf8(&message.item.payload)
///             .map_err(|_| DeliveryError::refused("the payload is no text").permanent())?;
///         let mut pages = self.pages.lock().map_err(|_| DeliveryError::unreachable("no paper"))?;
///         pages.push(format!("{} {text}", message.id()));
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemoryStore::default());
/// store.enqueue(&QueueName::outbox(), &[QueueItem::new(&Tenant::default(), "orders", "tea")]).await?;
///
/// let printer = Arc::new(Printer::default());
/// let printed = async || while printer.pages.lock().unwrap().is_empty() {
///     tokio::task::yield_now().await
/// };
/// Relay::new(store, printer.clone()).run(printed()).await;
/// assert!(printer.pages.lock().unwrap()[0].ends_with(" tea"));
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// A short word for logs and metric labels.
    fn name(&self) -> &'static str;

    /// Delivers one message.
    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError>;

    /// Checks whether the sink is up, at the start and after it was down, so that no row is risked to
    /// find out. Opens a new connection even if there is one: the relay may ask because the old
    /// connection no longer answers.
    async fn check(&self) -> Result<(), DeliveryError> {
        Ok(())
    }

    /// How many messages may be in flight at once.
    fn max_in_flight(&self) -> usize {
        256
    }
}

/// Why a message was not delivered, as far as the sink knows.
///
/// Reasons are shown to operators and written to logs: they name no key, no topic and no payload. A
/// driver's error may, so none is kept as the source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeliveryError {
    /// The sink answered, and the answer is about this message. Counts as an attempt.
    #[error("{reason}")]
    Refused {
        /// The answer.
        reason: Cow<'static, str>,
        /// Whether and when to try again.
        retry: RetryHint,
    },
    /// The sink answered that it takes nothing now: it is overloaded, or full. Counts as an attempt only
    /// if the sink took another message since; otherwise the relay waits.
    #[error("{reason}")]
    Rejected {
        /// The answer.
        reason: Cow<'static, str>,
        /// When to try again.
        retry: RetryHint,
    },
    /// This message got no answer in time, or its own exchange was cut off. Whether it was delivered
    /// is unknown. Counts as an attempt only if the sink took another message since.
    #[error("{reason}")]
    Unanswered {
        /// The failure, for the log and the dead letter.
        reason: Cow<'static, str>,
    },
    /// The connection was lost, with all messages in flight on it. Whether this message was delivered
    /// is unknown. Counts as an attempt only if it was the only one in flight and the sink took another
    /// one since.
    #[error("{reason}")]
    Disconnected {
        /// The failure, for the log and the dead letter.
        reason: Cow<'static, str>,
    },
    /// The sink cannot be reached, or accepts no message at all now. Never counts; the relay waits.
    #[error("{reason}")]
    Unreachable {
        /// The failure, for the log and the dead letter.
        reason: Cow<'static, str>,
    },
}

/// Whether a refused message is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryHint {
    /// After the relay's backoff, until its attempts are used up.
    Later,
    /// Not before this time has passed, as the sink asked.
    After(Duration),
    /// Never: the same message will get the same answer.
    Never,
}

impl DeliveryError {
    /// [`DeliveryError::Refused`], to be tried again.
    pub fn refused(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused { reason: reason.into(), retry: RetryHint::Later }
    }

    /// [`DeliveryError::Rejected`].
    pub fn rejected(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Rejected { reason: reason.into(), retry: RetryHint::Later }
    }

    /// [`DeliveryError::Unanswered`].
    pub fn unanswered(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Unanswered { reason: reason.into() }
    }

    /// [`DeliveryError::Disconnected`].
    pub fn disconnected(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Disconnected { reason: reason.into() }
    }

    /// [`DeliveryError::Unreachable`].
    pub fn unreachable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Unreachable { reason: reason.into() }
    }

    /// Makes a refusal permanent: the message is not tried again.
    #[must_use]
    pub fn permanent(self) -> Self {
        self.retry(RetryHint::Never)
    }

    /// Sets when a refused or rejected message is tried again.
    #[must_use]
    pub fn retry(mut self, hint: RetryHint) -> Self {
        if let Self::Refused { retry, .. } | Self::Rejected { retry, .. } = &mut self {
            *retry = hint;
        }
        self
    }

    /// Whether a retry may succeed. A retry is always safe: it carries the same id.
    pub fn is_retryable(&self) -> bool {
        let (Self::Refused { retry, .. } | Self::Rejected { retry, .. }) = self else {
            return true;
        };
        *retry != RetryHint::Never
    }

    /// The reason, for operators.
    pub fn reason(&self) -> &Cow<'static, str> {
        match self {
            Self::Refused { reason, .. }
            | Self::Rejected { reason, .. }
            | Self::Unanswered { reason }
            | Self::Disconnected { reason }
            | Self::Unreachable { reason } => reason,
        }
    }

    /// The metric label.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Rejected { .. } => "rejected",
            Self::Unanswered { .. } => "unanswered",
            Self::Disconnected { .. } => "cut",
            Self::Unreachable { .. } => "unreachable",
        }
    }
}
