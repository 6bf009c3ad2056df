//! Where rows go.

use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;

use crate::Message;

/// Where a [`Relay`](crate::Relay) delivers: a broker, a webhook, a file.
///
/// The relay does the rest: it keeps the order of each key, sends different keys at once, tries
/// again, gives up, waits while the sink is away. A sink sends one message and says honestly what
/// became of it.
///
/// # Laws
///
/// 1. `Ok` means that the message is where it survives: acknowledged, not merely written to a socket.
/// 2. The message travels with its id ([`Message::id`]), the same one however often it is sent, so
///    that the other side can tell a second delivery from a second message.
/// 3. [`Failure`] tells an answer from silence. An answer counts as an attempt of that row, an
///    unreachable sink does not.
/// 4. `send` is called from many tasks at once, up to [`Sink::at_once`], and never twice at once for
///    rows of the same key. The relay drops the call when it takes too long.
///
/// # Writing one
///
/// ```
/// use hapax_relay::{Failure, Message, Relay, Sink, Settings};
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
///     async fn send(&self, message: &Message) -> Result<(), Failure> {
///         // Will never be printable: no use in trying again.
///         let text = std::str::from_utf8(&message.item.payload)
///             .map_err(|_| Failure::refused("the payload is no text").for_good())?;
///         let mut pages = self.pages.lock().map_err(|_| Failure::unreachable("no paper"))?;
///         pages.push(format!("{} {text}", message.id()));
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemoryStore::default());
/// store.enqueue(&QueueName::outbox(), &[Item::new(&Tenant::default(), "orders", "tea")]).await?;
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
    async fn send(&self, message: &Message) -> Result<(), Failure>;

    /// Whether the sink is there, asked at the start and after it was away, so that no row is risked
    /// to find out. Connects, and does so anew where there is a connection already: what made the
    /// relay ask may be that nothing is heard on the old one.
    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// How many messages may be on their way at once.
    fn at_once(&self) -> usize {
        256
    }
}

/// Why a message was not delivered, as far as the sink knows.
///
/// Reasons are shown to operators and written to logs: they name no key, no topic and no payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The sink answered, and the answer is about this message. Counts as an attempt.
    #[error("{reason}")]
    Refused {
        /// What it said.
        reason: Cow<'static, str>,
        /// Whether and when to try again.
        again: Again,
    },
    /// This message got no answer in time, or its own exchange was cut off. Whether it was delivered
    /// is unknown. Counts where others got an answer meanwhile: then it is about this message.
    #[error("{reason}")]
    Unanswered {
        /// What happened.
        reason: Cow<'static, str>,
    },
    /// The connection was lost, with everything that was on its way over it. Whether this message was
    /// delivered is unknown. Counts only where it was on its way alone.
    #[error("{reason}")]
    Cut {
        /// What happened.
        reason: Cow<'static, str>,
    },
    /// The sink cannot be reached, or takes nothing at all now. Never counts; the relay waits.
    #[error("{reason}")]
    Unreachable {
        /// What is in the way.
        reason: Cow<'static, str>,
    },
}

/// Whether a refused message is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// After the usual wait, until its attempts are used up.
    Later,
    /// Not before this has passed, as the sink wished.
    After(Duration),
    /// Never: the same message will get the same answer.
    Never,
}

impl Failure {
    /// [`Failure::Refused`], to be tried again.
    pub fn refused(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Refused { reason: reason.into(), again: Again::Later }
    }

    /// [`Failure::Unanswered`].
    pub fn unanswered(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Unanswered { reason: reason.into() }
    }

    /// [`Failure::Cut`].
    pub fn cut(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Cut { reason: reason.into() }
    }

    /// [`Failure::Unreachable`].
    pub fn unreachable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::Unreachable { reason: reason.into() }
    }

    /// A refusal that will not change.
    #[must_use]
    pub fn for_good(self) -> Self {
        self.again(Again::Never)
    }

    /// A refusal, and when to try again.
    #[must_use]
    pub fn again(mut self, when: Again) -> Self {
        if let Self::Refused { again, .. } = &mut self {
            *again = when;
        }
        self
    }

    /// The words for an operator.
    pub fn reason(&self) -> &Cow<'static, str> {
        match self {
            Self::Refused { reason, .. }
            | Self::Unanswered { reason }
            | Self::Cut { reason }
            | Self::Unreachable { reason } => reason,
        }
    }

    /// A short stable word for metric labels.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Unanswered { .. } => "unanswered",
            Self::Cut { .. } => "cut",
            Self::Unreachable { .. } => "unreachable",
        }
    }
}
