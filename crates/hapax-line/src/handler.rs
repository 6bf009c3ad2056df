//! The bot, as the gateway sees it.

use std::borrow::Cow;

use async_trait::async_trait;
use hapax_core::OnUnknown;

use crate::{EventContext, LineEvent};

/// A bot: handles the events that were admitted.
///
/// An event is handled again where its handling failed, and, with a greater
/// [attempt](EventContext::attempt) and [fence](EventContext::fence), where the process died half-way.
/// Where the effect is in a SQL database, put [the event's id](EventContext::id) into its transaction
/// with the store's `inbox`: only that is exactly once.
#[async_trait]
pub trait LineEventHandler: Send + Sync + 'static {
    /// Handles an event. Dropped where it takes longer than
    /// [`GatewayConfig::handler_timeout`](crate::GatewayConfig::handler_timeout); the outcome is then
    /// unknown.
    async fn handle(
        &self,
        event: &LineEvent,
        context: &EventContext,
    ) -> Result<(), EventHandlerError>;
}

/// Why an event was not handled. The reason is for operators and must name nothing personal, so no
/// source error is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct EventHandlerError {
    pub(crate) reason: Cow<'static, str>,
    pub(crate) kind: FailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    Retry,
    Away,
    Rejected,
    Unknown,
    /// The handler panicked: as unknown as the one above, but certainly about this event.
    Panicked,
    Permanent,
}

impl EventHandlerError {
    /// Handling had no effect, or one that may be repeated: the event is retried.
    pub fn retry(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), kind: FailureKind::Retry }
    }

    /// The bot cannot be reached, so that handling had no effect. Uses up no attempt: the gateway waits for
    /// the bot.
    pub fn away(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), kind: FailureKind::Away }
    }

    /// The bot answered that it takes nothing now, so that handling had no effect. Uses up an attempt only
    /// if the bot handled another event since; otherwise the gateway waits for the bot.
    pub fn rejected(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), kind: FailureKind::Rejected }
    }

    pub(crate) fn panicked() -> Self {
        Self { reason: "the handler panicked".into(), kind: FailureKind::Panicked }
    }

    /// Handling may or may not have had an effect:
    /// [`GatewayConfig::on_unknown`](crate::GatewayConfig::on_unknown) decides what happens.
    pub fn unknown(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), kind: FailureKind::Unknown }
    }

    /// Handling will never work: the event becomes a dead letter.
    pub fn permanent(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), kind: FailureKind::Permanent }
    }

    /// Whether the event is tried again under this policy for unknown outcomes.
    pub(crate) fn may_retry(&self, on_unknown: OnUnknown) -> bool {
        match self.kind {
            FailureKind::Retry | FailureKind::Away | FailureKind::Rejected => true,
            FailureKind::Unknown | FailureKind::Panicked => on_unknown == OnUnknown::TakeOver,
            FailureKind::Permanent => false,
        }
    }

    /// Whether it is unknown if handling had an effect.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.kind, FailureKind::Unknown | FailureKind::Panicked)
    }

    /// Whether the event may be handled again without repeating an effect.
    pub fn is_retry_safe(&self) -> bool {
        matches!(self.kind, FailureKind::Retry | FailureKind::Away | FailureKind::Rejected)
    }
}
