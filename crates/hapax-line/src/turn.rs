//! One event being handled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hapax_core::queue::ItemId;
use hapax_core::{ClaimRequest, Claimed, Fence, GiveBack, Key, OnUnknown, Store, Tenant, Token};
use tokio::time::Instant;

use crate::gateway::{Budget, Local};
use crate::{Event, LineClient, Message, SendError, Sent};

/// How long a reply is believed to be on its way.
const REPLYING: Duration = Duration::from_secs(60);

/// What a [`Handler`](crate::Handler) knows about its turn, and how it answers.
pub struct Turn {
    pub(crate) id: ItemId,
    pub(crate) attempt: u32,
    /// Whether an earlier attempt may have been another process's.
    pub(crate) tried_elsewhere: bool,
    pub(crate) fence: Option<Fence>,
    pub(crate) correlation: Arc<str>,
    pub(crate) client: LineClient,
    pub(crate) event: Event,
    pub(crate) reply_until: Instant,
    pub(crate) pushes: AtomicU32,
    pub(crate) local: Local,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) tenant: Tenant,
    pub(crate) remember: Duration,
    pub(crate) budget: Arc<Budget>,
}

impl Turn {
    /// Which event it is: the same however often it is delivered and tried.
    pub fn id(&self) -> ItemId {
        self.id
    }

    /// 1 for the first.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// To be passed on to what is written: it grows with every turn of the same user where the event
    /// is locked, and with every attempt where it is not. `None` while the store is away.
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Joins the log lines of one event; random, says nothing about anybody.
    pub fn correlation(&self) -> &str {
        &self.correlation
    }

    /// Replies, once: a token is used a single time, also where the turn is repeated by another
    /// process, and not when it is too old.
    pub async fn reply(&self, messages: &[Message]) -> Result<Sent, SendError> {
        self.may_send()?;
        let token = self.event.reply_token().ok_or(SendError::NoToken)?;
        if Instant::now() >= self.reply_until {
            let tried = self.was_tried().await;
            return Err(if tried { SendError::TriedBefore } else { SendError::NoToken });
        }
        let Some(mark) = self.mark().await else { return Err(SendError::TriedBefore) };
        let answer = self.client.reply(token, messages).await;
        if matches!(answer, Err(SendError::NotNow | SendError::Count(_))) {
            self.unmark(mark).await;
        }
        answer
    }

    /// Pushes to the event's chat. The retry key follows from the event and from how many pushes came
    /// before in this turn: where the turn is repeated LINE sends it once, also if it then says it
    /// otherwise. A handler that may push other things the next time gives each
    /// [a name](Turn::push_as).
    pub async fn push(&self, messages: &[Message]) -> Result<Sent, SendError> {
        let nth = self.pushes.fetch_add(1, Ordering::Relaxed).to_string();
        self.push_keyed(&["push", &self.id.to_string(), &nth], messages).await
    }

    /// As [`Turn::push`], with a retry key that follows from the event and this name.
    pub async fn push_as(&self, name: &str, messages: &[Message]) -> Result<Sent, SendError> {
        self.push_keyed(&["push as", &self.id.to_string(), name], messages).await
    }

    async fn push_keyed(&self, key: &[&str], messages: &[Message]) -> Result<Sent, SendError> {
        self.may_send()?;
        let to = self.event.chat_id().ok_or(SendError::NotAllowed)?;
        self.client.push(to, messages, ItemId::named(key).0).await
    }

    /// Replies, or pushes where there is no token that would work; never both.
    pub async fn say(&self, messages: &[Message]) -> Result<Sent, SendError> {
        match self.reply(messages).await {
            Err(SendError::NoToken) => self.push(messages).await,
            answer => answer,
        }
    }

    /// Shows the loading animation, in a chat with one user.
    pub async fn loading(&self, seconds: u8) -> Result<(), SendError> {
        self.may_send()?;
        let user = self.event.user_id().filter(|_| self.event.is_one_to_one());
        self.client.loading(user.ok_or(SendError::NotAllowed)?, seconds).await
    }

    fn may_send(&self) -> Result<(), SendError> {
        if self.event.is_standby() { Err(SendError::NotAllowed) } else { Ok(()) }
    }

    /// Says, before anything is sent, that a reply is tried: the token is what must not be used twice,
    /// so a process that dies in between costs the reply. `None` where it was tried before. The inner
    /// one is missing where the store does not answer, and nobody else can have tried.
    async fn mark(&self) -> Option<Option<(Key, Token)>> {
        if !self.local.reply(self.id) {
            return None;
        }
        let key = self.mark_key();
        let ask =
            ClaimRequest::new(REPLYING).retention(self.remember).on_unknown(OnUnknown::Refuse);
        match self.budget.spend(self.store.claim(&key, &ask)).await {
            Some(Ok(Claimed::Granted { ticket, .. })) => Some(Some((key, ticket.token))),
            Some(Ok(_)) => None,
            Some(Err(_)) | None => (!self.tried_elsewhere).then_some(None),
        }
    }

    fn mark_key(&self) -> Key {
        Key::inbox(&self.tenant, "line-reply", &self.id.to_string()).expect("a UUID is a name")
    }

    /// Whether a reply was tried, in this turn or in an earlier one; where nobody can say, it was.
    async fn was_tried(&self) -> bool {
        let here = self.local.was_replied_to(self.id);
        if here || !self.tried_elsewhere {
            return here;
        }
        !matches!(self.budget.spend(self.store.look(&self.mark_key())).await, Some(Ok(None)))
    }

    /// Nothing was sent: it may be tried again.
    async fn unmark(&self, mark: Option<(Key, Token)>) {
        if let Some((key, token)) = mark {
            let undo = self.store.give_back(&key, &token, GiveBack::Forget);
            if self.budget.spend(undo).await.is_none_or(|answer| answer.is_err()) {
                return;
            }
        }
        self.local.unreply(self.id);
    }
}
