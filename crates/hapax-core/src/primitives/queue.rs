//! `Queue`, the fourth primitive: durable work with leases, retries and dead letters.

mod dead;
pub mod reasons;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::key::{InvalidKey, MAX_NAME, check};
use crate::{Fence, Fingerprint, Key, StoreResult, Tenant, Token, Watch, trace};

pub use dead::{DeadLetter, DeadLetterAction, DeadQuery, DeadReason, ReasonCounts};

/// How many items one call for operators looks at ([`Queue::waiting`], [`Queue::dead_reasons`]).
pub const MAX_EXAMINED: u32 = 100_000;

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
///    remembered) is [`Enqueued::Duplicate`] and changes nothing. Ids are unique per queue, not per
///    tenant: an id derived from names ([`ItemId::named`]) must include the tenant's name.
/// 2. **One holder.** An item is leased to one holder at a time; its lease ends by the store's
///    clock. Each lease of an item has a greater fence than the one before.
/// 3. **Order per key.** Of items with the same tenant and ordering key, a later one is never
///    leased while an earlier one waits, is in flight with another holder, or is dead and blocks.
///    One lease may return several of them, in order. Items without a key have no order. *Earlier*
///    is the order of enqueueing; for SQL transactions that overlap it may be either order. An item
///    that is retried without keeping its place has no key from then on: those behind it follow.
/// 4. **Isolation of keys.** An item that waits for its retry, or is dead, holds back only items
///    with its own key.
/// 5. **Steps compare the token.** Ack, retry and bury are lost and change nothing if the item was
///    leased again after the holder's lease lapsed, or is no longer in flight; until then they
///    count. An ack repeated by the same holder is done again while the item is remembered.
/// 6. **Repeated calls.** A lease call whose token still holds items returns those items and no
///    others, with the same attempt and fence; their lease starts again. A token whose leases have
///    lapsed holds nothing.
/// 7. **Attempts** count leases. A retry with `counts: false` takes its own attempt back; a lapsed
///    lease stays counted.
/// 8. **Nothing is lost.** An item leaves the queue only by an ack (and is then remembered for the
///    ack's `retention`), or by an operator's discard.
/// 9. **Reasons are kept** of the last ten failures of an item ([`reasons`]), until it is acknowledged or
///    requeued.
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
    /// Adds items in the given order. Returns one answer per item.
    async fn enqueue(&self, queue: &QueueName, items: &[QueueItem]) -> StoreResult<Vec<Enqueued>>;

    /// Leases due items, oldest first as far as the keys allow. Returns none if none is due.
    async fn lease(&self, queue: &QueueName, take: &LeaseRequest) -> StoreResult<Vec<LeasedItem>>;

    /// Moves the end of all leases of this token to `lease` from now. Returns how many there were.
    async fn renew(&self, queue: &QueueName, token: &Token, lease: Duration) -> StoreResult<u64>;

    /// Ends the leases of items, each with its own outcome, in one round trip. Returns one answer
    /// per item.
    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> StoreResult<Vec<Resolved>>;

    /// Counts the items of one tenant, or of all tenants.
    ///
    /// The numbers are exact where the queue has no more than [`MAX_EXAMINED`] items, of all tenants. Beyond that a store
    /// may estimate what lies behind those that it counted, so that the call costs no more for a longer queue; it never
    /// tells fewer than it counted. [`QueueDepth::oldest_age`] is then of the oldest item that it looked at.
    async fn depth(&self, queue: &QueueName, whose: Option<&Tenant>) -> StoreResult<QueueDepth>;

    /// Lists the oldest items that wait or are in flight, the oldest first; at most `at_most`.
    ///
    /// A store looks at no more than about [`MAX_EXAMINED`] items: in a longer queue it may list others than
    /// the very oldest, and too few of a tenant whose items are behind those of others.
    async fn waiting(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<QueuedItem>>;

    /// Lists dead letters in the order of their ids.
    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        query: &DeadQuery,
    ) -> StoreResult<Vec<DeadLetter>>;

    /// Counts the dead letters by their reason, the most frequent first; at most `at_most` reasons.
    ///
    /// Of more than [`MAX_EXAMINED`] dead letters of a queue, no more than about that many are counted.
    async fn dead_reasons(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<DeadReason>>;

    /// Reads the item of a dead letter, with its payload.
    async fn dead_item(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> StoreResult<Option<QueueItem>>;

    /// The names of all queues that have items, in order. A queue whose items are all done may be
    /// among them.
    async fn queues(&self) -> StoreResult<Vec<QueueName>>;

    /// Requeues or discards a dead letter. Returns whether there was one.
    async fn resolve_dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
        action: DeadLetterAction,
    ) -> StoreResult<bool>;

    /// Registers for a hint that an item may be due. A hint may be spurious or missing.
    fn arrivals(&self, _queue: &QueueName) -> Watch {
        Watch::never()
    }

    /// [`Queue::resolve_dead`] with [`DeadLetterAction::Requeue`].
    async fn requeue(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> StoreResult<bool> {
        self.resolve_dead(queue, whose, id, DeadLetterAction::Requeue).await
    }

    /// [`Queue::resolve_dead`] with [`DeadLetterAction::Discard`].
    async fn discard(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> StoreResult<bool> {
        self.resolve_dead(queue, whose, id, DeadLetterAction::Discard).await
    }

    /// Resolves items as done; they are remembered as duplicates for `retention`.
    async fn ack(
        &self,
        queue: &QueueName,
        token: &Token,
        ids: &[ItemId],
        retention: Duration,
    ) -> StoreResult<Vec<Resolved>> {
        let outcomes: Vec<_> = ids.iter().map(|id| (*id, ItemOutcome::Ack { retention })).collect();
        self.resolve(queue, token, &outcomes).await
    }

    /// Resolves one item as failed for now; it is due again after `after`.
    async fn retry(
        &self,
        queue: &QueueName,
        token: &Token,
        id: ItemId,
        after: Duration,
        reason: &str,
    ) -> StoreResult<Resolved> {
        let outcome =
            ItemOutcome::Retry { after, counts: true, reason: reason.into(), keeps_place: true };
        Ok(self.resolve(queue, token, &[(id, outcome)]).await?[0])
    }

    /// Resolves one item as failed for good. Later items of its key wait until an operator requeues
    /// or discards it.
    async fn bury(
        &self,
        queue: &QueueName,
        token: &Token,
        id: ItemId,
        reason: &str,
    ) -> StoreResult<Resolved> {
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

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key that waiters for new items watch in every store. Its tenant is empty, so that no other
    /// key equals it.
    pub fn arrivals_key(&self) -> Option<Key> {
        Key::stored("", "job", "", self.as_str())
    }
}

/// The id of an item. A UUID, so that it can be the message id of any broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub Uuid);

impl ItemId {
    /// A new id that sorts by time (UUID v7).
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id derived from these parts (UUID v8 from SHA-256), for work whose identity comes from
    /// outside. Equal parts give equal ids.
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

/// An item of work.
#[derive(Clone, PartialEq, Eq)]
pub struct QueueItem {
    /// The id, by which duplicates are recognised.
    pub id: ItemId,
    /// The tenant that the item belongs to.
    pub tenant: Tenant,
    /// The destination or type of the item.
    pub topic: Arc<str>,
    /// The ordering key: items of a tenant with the same key are leased in order.
    pub key: Option<Arc<str>>,
    /// The content.
    pub payload: Bytes,
    /// The media type of the payload.
    pub content_type: Option<Arc<str>>,
    /// Headers that accompany the payload.
    pub headers: BTreeMap<String, String>,
    /// How long after enqueueing the item is due.
    pub delay: Duration,
}

impl QueueItem {
    /// An item with a fresh id that is due at once. If it is created within a [trace], its header
    /// `traceparent` names that trace.
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

    crate::builder_methods! {
        /// Sets the id.
        id: ItemId;
        /// Sets how long after enqueueing the item is due.
        delay: Duration;
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the media type of the payload.
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

    /// Reads the headers that another program may have stored as JSON. A value that is not a string is
    /// kept as its JSON text and not parsed, because it may be nested deeper than serde follows, and a
    /// row that cannot be read would stop its whole queue.
    pub fn headers_from_json(json: &str) -> BTreeMap<String, String> {
        let parsed: BTreeMap<String, &RawValue> = serde_json::from_str(json).unwrap_or_default();
        let plain = |value: &RawValue| {
            serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned())
        };
        parsed.into_iter().map(|(name, value)| (name, plain(value))).collect()
    }
}

/// Shows only the id, because topic, key and payload may identify a person.
impl std::fmt::Debug for QueueItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueueItem({}, …)", self.id)
    }
}

/// The answer to one enqueued item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// The item was added.
    Accepted,
    /// The queue knows the id already; nothing was changed.
    Duplicate,
}

/// The parameters of a lease call.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The secret that every later step presents. The caller creates a new one for each lease call,
    /// so that a call whose answer was lost can be repeated.
    pub token: Token,
    /// The maximum number of items; at least 1.
    pub max_items: usize,
    /// How long the leases last without renewal.
    pub lease: Duration,
}

impl LeaseRequest {
    /// A request with a fresh token.
    pub fn new(max_items: usize, lease: Duration) -> Self {
        Self { token: Token::random(), max_items, lease }
    }
}

/// A leased item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedItem {
    /// The item; its `delay` is zero.
    pub item: QueueItem,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The fence, which grows with every lease of the item.
    pub fence: Fence,
    /// How long ago the item was enqueued.
    pub age: Duration,
}

/// How a lease ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    /// The work is done.
    Ack {
        /// How long the id is still recognised as a duplicate.
        retention: Duration,
    },
    /// The work failed for now.
    Retry {
        /// How long until the item is due again.
        after: Duration,
        /// Whether this lease counts as an attempt.
        counts: bool,
        /// The reason, for operators; without personal data.
        reason: Arc<str>,
        /// Whether later items of its key wait for the retry. If not, the item loses its key.
        keeps_place: bool,
    },
    /// The work failed for good: the item becomes a dead letter.
    Bury {
        /// The reason, for operators; without personal data.
        reason: Arc<str>,
        /// Whether later items of its key wait until the item is requeued or discarded.
        blocks: bool,
    },
}

/// The result of resolving one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lost step changed nothing"]
pub enum Resolved {
    /// The outcome was stored.
    Done,
    /// The token does not, or no longer, hold the item; nothing was changed.
    Lost,
}

/// The numbers of items in a queue, which may be estimates in a long one: [`Queue::depth`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDepth {
    /// Items that wait: due, not due yet, or held back by an earlier item of their key.
    pub waiting: u64,
    /// Items with a lease that has not lapsed.
    pub in_flight: u64,
    /// Dead letters.
    pub dead: u64,
    /// The age of the oldest item that waits or is in flight.
    pub oldest_age: Option<Duration>,
}

/// An item that waits or is in flight, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedItem {
    /// The id of the item.
    pub id: ItemId,
    /// The topic of the item.
    pub topic: Arc<str>,
    /// The ordering key of the item.
    pub key: Option<Arc<str>>,
    /// How many attempts were made, including the one in flight.
    pub attempts: u32,
    /// How long ago the item was enqueued.
    pub age: Duration,
    /// Whether it has a lease that has not lapsed.
    pub in_flight: bool,
    /// The newest reason why it failed.
    pub reason: Option<Arc<str>>,
}
