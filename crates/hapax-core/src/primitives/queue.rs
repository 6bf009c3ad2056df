//! `Queue`, the fourth primitive: durable work with leases, retries and dead letters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use uuid::Uuid;

use crate::key::{InvalidKey, MAX_NAME, check};
use crate::{Fence, Fingerprint, Key, StoreError, Tenant, Timestamp, Token, Watch, trace};

/// Durable work: waiting → in flight (leased) → done, or dead.
///
/// ```text
///             lease                       ack
///   waiting ─────────► in flight ──────────────────► done ──► forgotten
///    ▲  ▲               │   │                              (after `retention`)
///    │  └───────────────┘   │ bury
///    │  retry, lapsed lease ▼
///    └───────────────────── dead ──► discarded
///             requeue
/// ```
///
/// # Laws
///
/// 1. **Idempotent.** An id that the queue knows (waiting, in flight, dead, or done and still
///    remembered) is [`Enqueued::Duplicate`], and changes nothing. Ids are the queue's, not a
///    tenant's: one that is derived from names ([`ItemId::named`]) includes the tenant's.
/// 2. **One holder.** An item is leased to one holder at a time; its lease ends by the store's clock.
///    Each lease has a greater fence than the one before it.
/// 3. **Order per key.** Of items with the same tenant and ordering key, a later one is never handed
///    out while an earlier one waits, is in flight with another holder, or is dead and blocks. One
///    lease may hand out several of them, in order. Items without a key have no order. *Earlier* is
///    the order of enqueueing; inside SQL transactions that overlap it is either.
/// 4. **Nobody else suffers.** An item that waits for its retry, or is dead, holds back only its own
///    key.
/// 5. **Steps compare the token.** Ack, retry and bury by somebody whose lease lapsed *and* whose item
///    was handed out again, or is no longer in flight, are lost and change nothing; until then they
///    count. An ack repeated by the same holder is done again for as long as the item is remembered.
/// 6. **Asked again.** A lease that presents a token which still holds items gives those again, with
///    the lease anew and the same attempt and fence, and no others. A token whose leases have lapsed
///    holds nothing.
/// 7. **Attempts** count leases. A retry with `counts: false` takes its own back; a lapsed lease does
///    not.
/// 8. **Nothing is lost.** An item leaves only by ack (and is then remembered for as long as the ack
///    says), or by an operator's discard.
///
/// ```
/// use hapax_core::{memory::MemoryStore, queue::*, Tenant};
/// use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::default();
/// let queue = QueueName::new("mail")?;
/// let item = QueueItem::new(&Tenant::default(), "welcome", "hello").key("user-1");
/// assert_eq!(store.enqueue(&queue, &[item.clone()]).await?, [Enqueued::Accepted]);
/// assert_eq!(store.enqueue(&queue, &[item]).await?, [Enqueued::Duplicate]);
///
/// let take = LeaseRequest::new(10, Duration::from_secs(30));
/// let leased = store.lease(&queue, &take).await?;
/// assert_eq!((leased.len(), leased[0].attempt), (1, 1));
/// let done = store.ack(&queue, &take.token, &[leased[0].item.id], Duration::ZERO).await?;
/// assert_eq!(done, [Resolved::Done]);
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Queue: Send + Sync {
    /// Adds items, in this order; one answer each.
    async fn enqueue(
        &self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError>;

    /// Hands out items that are due, oldest first as far as the keys allow. None, where nothing is.
    async fn lease(
        &self,
        queue: &QueueName,
        take: &LeaseRequest,
    ) -> Result<Vec<LeasedItem>, StoreError>;

    /// Makes the leases of everything this token holds end `lease` from now; how many they were.
    async fn renew(
        &self,
        queue: &QueueName,
        token: &Token,
        lease: Duration,
    ) -> Result<u64, StoreError>;

    /// Ends the leases of items, each with its own outcome, all in one round trip; one answer each.
    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> Result<Vec<Resolved>, StoreError>;

    /// What is in the queue; of one tenant, or of all.
    async fn depth(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
    ) -> Result<QueueDepth, StoreError>;

    /// The dead letters after this id, in the order of their ids.
    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        after: Option<ItemId>,
        at_most: u32,
    ) -> Result<Vec<DeadLetter>, StoreError>;

    /// Makes a dead letter wait again, in its old place, with its attempts counted anew; whether there
    /// was one.
    async fn requeue(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError>;

    /// Forgets a dead letter, so that its key goes on; whether there was one.
    async fn discard(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError>;

    /// Registers for a hint that something may be due. May come for nothing, or not at all.
    fn arrivals(&self, _queue: &QueueName) -> Watch {
        Watch::never()
    }

    /// Resolves items as done; they are remembered as duplicates for `retention`.
    async fn ack(
        &self,
        queue: &QueueName,
        token: &Token,
        ids: &[ItemId],
        retention: Duration,
    ) -> Result<Vec<Resolved>, StoreError> {
        let outcomes: Vec<_> = ids.iter().map(|id| (*id, ItemOutcome::Ack { retention })).collect();
        self.resolve(queue, token, &outcomes).await
    }

    /// Resolves one item as failed for now: due again after `after`.
    async fn retry(
        &self,
        queue: &QueueName,
        token: &Token,
        id: ItemId,
        after: Duration,
        reason: &str,
    ) -> Result<Resolved, StoreError> {
        let outcome = ItemOutcome::Retry { after, counts: true, reason: reason.into() };
        Ok(self.resolve(queue, token, &[(id, outcome)]).await?[0])
    }

    /// Resolves one item as failed for good; its key waits for an operator.
    async fn bury(
        &self,
        queue: &QueueName,
        token: &Token,
        id: ItemId,
        reason: &str,
    ) -> Result<Resolved, StoreError> {
        let outcome = ItemOutcome::Bury { reason: reason.into(), blocks: true };
        Ok(self.resolve(queue, token, &[(id, outcome)]).await?[0])
    }
}

/// The name of a queue: 1 to 255 bytes of printable ASCII.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// Checks the name.
    pub fn new(name: &str) -> Result<Self, InvalidKey> {
        check("queue", name, 0x21, MAX_NAME)?;
        Ok(Self(name.into()))
    }

    /// The queue of the transactional outbox.
    pub fn outbox() -> Self {
        Self("outbox".into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key that waiters for new items watch in every store. Its tenant is empty, so that no other
    /// key equals it.
    pub fn arrivals_key(&self) -> Option<Key> {
        Key::stored("", "job", "", self.as_str())
    }
}

/// Which item it is. A UUID, so that it can travel as any broker's message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub Uuid);

impl ItemId {
    /// A new one that sorts by time (UUID v7).
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The one that belongs to these parts, always the same (UUID v8 from SHA-256): for work whose
    /// identity comes from outside.
    ///
    /// ```
    /// use hapax_core::queue::ItemId;
    /// assert_eq!(ItemId::named(&["bot", "01H"]), ItemId::named(&["bot", "01H"]));
    /// assert_ne!(ItemId::named(&["bot", "01H"]), ItemId::named(&["bot0", "1H"]));
    /// ```
    pub fn named(parts: &[&str]) -> Self {
        let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
        let digest = Fingerprint::of(&parts);
        let number = u128::from_str_radix(&digest.as_str()[..32], 16).unwrap_or_default();
        Self(uuid::Builder::from_custom_bytes(number.to_be_bytes()).into_uuid())
    }
}

impl std::fmt::Display for ItemId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A piece of work.
#[derive(Clone, PartialEq, Eq)]
pub struct QueueItem {
    /// Which one it is.
    pub id: ItemId,
    /// Whose it is.
    pub tenant: Tenant,
    /// Where it goes, or what it is.
    pub topic: Arc<str>,
    /// Items with the same one are handed out in order.
    pub key: Option<Arc<str>>,
    /// The bytes.
    pub payload: Bytes,
    /// What the bytes are.
    pub content_type: Option<Arc<str>>,
    /// What travels beside them.
    pub headers: BTreeMap<String, String>,
    /// How long after the enqueueing it is due.
    pub delay: Duration,
}

impl QueueItem {
    /// An item with a fresh id that is due at once. It belongs to the [trace] in which it is made, if
    /// there is one: that is its header `traceparent`.
    pub fn new(tenant: &Tenant, topic: &str, payload: impl Into<Bytes>) -> Self {
        Self {
            id: ItemId::fresh(),
            tenant: tenant.clone(),
            topic: topic.into(),
            key: None,
            payload: payload.into(),
            content_type: None,
            headers: trace::current()
                .map(|trace| (trace::TRACEPARENT.to_owned(), trace.as_str().to_owned()))
                .into_iter()
                .collect(),
            delay: Duration::ZERO,
        }
    }

    /// Gives it an id of the caller's.
    #[must_use]
    pub fn id(mut self, id: ItemId) -> Self {
        self.id = id;
        self
    }

    /// Keeps its order among items with the same key.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Says what the bytes are.
    #[must_use]
    pub fn content_type(mut self, content_type: &str) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Is not due before this has passed.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

/// Shows the id alone: topic, key and payload may identify a person.
impl std::fmt::Debug for QueueItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueueItem({}, …)", self.id)
    }
}

/// The answer to one enqueued item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It will be handed out.
    Accepted,
    /// The queue knows its id already.
    Duplicate,
}

/// What is asked for with a lease.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The secret that every later step presents; made by the asker, so that a lost answer can be
    /// asked for again. One for each lease call.
    pub token: Token,
    /// How many items at most; at least 1.
    pub max_items: usize,
    /// How long they are believed alive.
    pub lease: Duration,
}

impl LeaseRequest {
    /// With a fresh token.
    pub fn new(max_items: usize, lease: Duration) -> Self {
        Self { token: Token::random(), max_items, lease }
    }
}

/// An item in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedItem {
    /// The work; its `delay` is zero.
    pub item: QueueItem,
    /// 1 for the first.
    pub attempt: u32,
    /// Grows with every lease of the item.
    pub fence: Fence,
    /// How long ago it was enqueued.
    pub age: Duration,
}

/// How a lease ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    /// Done.
    Ack {
        /// How long its id is still recognised as a duplicate.
        retention: Duration,
    },
    /// Failed for now.
    Retry {
        /// When it is due again.
        after: Duration,
        /// Whether this lease counts as an attempt.
        counts: bool,
        /// Why, for operators; nothing personal.
        reason: Arc<str>,
    },
    /// Failed for good: a dead letter.
    Bury {
        /// Why, for operators; nothing personal.
        reason: Arc<str>,
        /// Whether later items of its key wait until it is requeued or discarded.
        blocks: bool,
    },
}

/// What became of one outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lost step changed nothing"]
pub enum Resolved {
    /// As said.
    Done,
    /// The item is not held by this token (any more); nothing was changed.
    Lost,
}

/// How much is in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDepth {
    /// Waiting: due, not due yet, or behind another of its key.
    pub waiting: u64,
    /// Leased, and not lapsed.
    pub in_flight: u64,
    /// Dead letters.
    pub dead: u64,
    /// How long ago the oldest one that waits or is in flight was enqueued.
    pub oldest_age: Option<Duration>,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Which item.
    pub id: ItemId,
    /// Its ordering key.
    pub key: Option<Arc<str>>,
    /// How many times it was tried.
    pub attempts: u32,
    /// Why it was buried.
    pub reason: Arc<str>,
    /// When.
    pub at: Timestamp,
}
