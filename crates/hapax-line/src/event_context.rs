//! The context of one event, and how its handler answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hapax_core::queue::ItemId;
use hapax_core::{ClaimRequest, Claimed, Fence, GiveBack, Key, OnUnknown, Token};
use tokio::time::Instant;

use crate::gateway::{GatewayShared, ReceivedEvent, SharedTimeout};
use crate::{LineClient, LineMessage, SendError, SendStatus};

/// The lease of the mark that a reply is being sent.
const REPLY_LEASE: Duration = Duration::from_secs(60);

/// Tells a [`LineEventHandler`](crate::LineEventHandler) about the event it handles, and sends its answers.
pub struct EventContext {
    pub(crate) received: ReceivedEvent,
    pub(crate) attempt: u32,
    /// Whether an earlier attempt may have run in another process.
    pub(crate) may_be_tried_elsewhere: bool,
    pub(crate) fence: Option<Fence>,
    pub(crate) client: LineClient,
    pub(crate) pushes: AtomicU32,
    pub(crate) shared: Arc<GatewayShared>,
    pub(crate) store_timeout: Arc<SharedTimeout>,
}

impl EventContext {
    /// The event's id: the same however often the event is delivered and tried.
    pub fn id(&self) -> ItemId {
        self.received.id
    }

    /// The number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The fencing token, to be passed on to what the handler writes to: it grows with every event of the
    /// same user where the event is locked, and with every attempt where it is not. `None` while the
    /// store is down.
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Joins the log lines of one event; random.
    pub fn correlation(&self) -> &str {
        &self.received.correlation
    }

    /// Replies at most once: a reply token is not used twice, even where another process handles the event
    /// again, and not when it is too old.
    pub async fn reply(&self, messages: &[LineMessage]) -> Result<SendStatus, SendError> {
        self.check_may_send()?;
        let token = self.received.event.reply_token().ok_or(SendError::NoToken)?;
        if Instant::now() >= self.received.reply_until {
            let was_tried = self.was_reply_tried().await;
            return Err(if was_tried { SendError::AlreadyTried } else { SendError::NoToken });
        }
        let Some(mark) = self.mark_reply().await else { return Err(SendError::AlreadyTried) };
        let sent = self.client.reply(token, messages).await;
        if sent.is_ok() {
            self.shared.record("replied");
        }
        if matches!(sent, Err(SendError::NotNow | SendError::MessageCount(_))) {
            self.unmark_reply(mark).await;
        }
        sent
    }

    /// Pushes to the event's chat. The retry key is derived from the event and from how many pushes came
    /// before in this attempt: LINE sends the push of a repeated attempt once, even if its text differs. A
    /// handler that may push other things in the next attempt gives each push
    /// [a name](EventContext::push_named).
    pub async fn push(&self, messages: &[LineMessage]) -> Result<SendStatus, SendError> {
        let nth = self.pushes.fetch_add(1, Ordering::Relaxed).to_string();
        self.push_keyed(&["push", &self.received.id.to_string(), &nth], messages).await
    }

    /// As [`EventContext::push`], with a retry key that is derived from the event and this name.
    pub async fn push_named(
        &self,
        name: &str,
        messages: &[LineMessage],
    ) -> Result<SendStatus, SendError> {
        self.push_keyed(&["push as", &self.received.id.to_string(), name], messages).await
    }

    async fn push_keyed(
        &self,
        key: &[&str],
        messages: &[LineMessage],
    ) -> Result<SendStatus, SendError> {
        self.check_may_send()?;
        let to = self.received.event.chat_id().ok_or(SendError::NotAllowed)?;
        let sent = self.client.push(to, messages, ItemId::named(key).0).await;
        if sent == Ok(SendStatus::Accepted) {
            self.shared.record("pushed");
        }
        sent
    }

    /// Replies, or pushes where there is no usable reply token; never both.
    pub async fn reply_or_push(&self, messages: &[LineMessage]) -> Result<SendStatus, SendError> {
        match self.reply(messages).await {
            Err(SendError::NoToken) => self.push(messages).await,
            sent => sent,
        }
    }

    /// Shows the loading animation, in a chat with one user.
    pub async fn show_loading(&self, seconds: u8) -> Result<(), SendError> {
        self.check_may_send()?;
        let user = self.received.event.user_id().filter(|_| self.received.event.is_one_to_one());
        self.client.show_loading(user.ok_or(SendError::NotAllowed)?, seconds).await
    }

    fn check_may_send(&self) -> Result<(), SendError> {
        if self.received.event.is_standby() { Err(SendError::NotAllowed) } else { Ok(()) }
    }

    /// Marks, before the reply is sent, that it is tried: the token must not be used twice, so a process
    /// that dies in between loses the reply. `None` where a reply was tried before; `Some(None)` where the
    /// store does not answer and no other process can have tried.
    async fn mark_reply(&self) -> Option<Option<(Key, Token)>> {
        if !self.shared.local.begin_reply(self.received.id) {
            return None;
        }
        let key = self.reply_key();
        let ask = ClaimRequest::new(REPLY_LEASE)
            .retention(self.shared.config.retention)
            .on_unknown(OnUnknown::Refuse);
        match self.store_timeout.run(self.shared.store.claim(&key, &ask)).await {
            Some(Ok(Claimed::Granted { ticket, .. })) => Some(Some((key, ticket.token))),
            Some(Ok(_)) => None,
            Some(Err(_)) | None => (!self.may_be_tried_elsewhere).then_some(None),
        }
    }

    fn reply_key(&self) -> Key {
        Key::inbox(&self.shared.config.tenant, "line-reply", &self.received.id.to_string())
            .expect("a UUID is a valid name")
    }

    /// Whether a reply was tried, in this attempt or an earlier one; true where the store does not say.
    async fn was_reply_tried(&self) -> bool {
        let here = self.shared.local.has_replied(self.received.id);
        if here || !self.may_be_tried_elsewhere {
            return here;
        }
        let mark = self.store_timeout.run(self.shared.store.look(&self.reply_key())).await;
        !matches!(mark, Some(Ok(None)))
    }

    /// Undoes the mark, because nothing was sent.
    async fn unmark_reply(&self, mark: Option<(Key, Token)>) {
        if let Some((key, token)) = mark {
            let undo = self.shared.store.give_back(&key, &token, GiveBack::Forget);
            if self.store_timeout.run(undo).await.is_none_or(|answer| answer.is_err()) {
                return;
            }
        }
        self.shared.local.undo_reply(self.received.id);
    }
}
