//! What a bot is to the gateway.

use std::borrow::Cow;

use async_trait::async_trait;

use crate::{Event, Turn};

/// A bot: what is done with an event that was admitted.
///
/// An event comes again where its handling failed, and, with a greater [attempt](Turn::attempt) and
/// [fence](Turn::fence), where the process died in the middle. Where the effect is in a SQL database,
/// put [the event's id](Turn::id) into its transaction with the store's `inbox`: that alone is exactly
/// once.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles an event. Dropped where it takes longer than
    /// [`Settings::handle_limit`](crate::Settings::handle_limit); the outcome is then unknown.
    async fn handle(&self, event: &Event, turn: &Turn) -> Result<(), Failed>;
}

/// Why an event was not handled. The reason is for operators; nothing personal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Failed {
    pub(crate) reason: Cow<'static, str>,
    pub(crate) then: Then,
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Again,
    Unknown,
    Never,
}

impl Failed {
    /// It had no effect, or one that may be repeated: try it again later.
    pub fn again(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), then: Then::Again }
    }

    /// Nobody knows whether it had an effect: [`Settings::on_unknown`](crate::Settings::on_unknown)
    /// says what then happens.
    pub fn unknown(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), then: Then::Unknown }
    }

    /// It will never work: a dead letter.
    pub fn for_good(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), then: Then::Never }
    }
}
