use std::fmt;
use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{
    ClaimRequest, ClaimView, Claimed, Claims, Deleted, Expect, GiveBack, Key, Put, Record, Records,
    Step, StoreError, Ticket, Token, with_timeout,
};
use tokio_postgres::Transaction;

use crate::batch::Work;
use crate::claims::claim::{Asked, Claiming};
use crate::claims::step::{Act, Stepping, Taken};
use crate::error::{Failure, corrupt};
use crate::{claims, records};
use inbox::MessageStatus;
use lock::Patience;
use session::Caller;

pub(crate) mod inbox;
pub(crate) mod lock;
pub(crate) mod outbox;
pub(crate) mod session;
#[cfg(feature = "sqlx")]
pub(crate) mod sqlx_adapter;

/// Claims, records and items of queues inside a transaction that the caller owns: they commit with the caller's own
/// rows or not at all, which is what makes an effect in this database happen exactly once.
///
/// While the transaction is open, everybody else who claims the same key, in a transaction or
/// through a [`PostgresStore`](crate::PostgresStore), is told [`Claimed::Busy`] at once and never
/// waits for it. A step or a put on the same key from elsewhere is tried again for as long as its
/// limit allows.
///
/// The tables must be where the connection's `search_path` leads; see [`migrate`](crate::migrate()).
/// In a transaction of level *repeatable read* or *serializable* a lost race is the error
/// [`StoreError::Locked`], as for any other statement there.
///
/// **After an error roll back.** PostgreSQL has mostly aborted the transaction already, and after a
/// time limit nobody knows what the server did.
///
/// Waiters hear of a settle only when they next look, because it counts from the commit on; call
/// [`PostgresStore::hint`](crate::PostgresStore::hint) after it to tell them at once.
///
/// ```no_run
/// use hapax_core::{Operation, ClaimRequest, Claimed, Claims, Key, Step, Tenant};
/// use hapax_postgres::InTransaction;
/// use std::time::Duration;
///
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let key = Key::inbox(&Tenant::default(), "billing", "message-1")?;
/// let ask = ClaimRequest::new(Duration::from_secs(30)).retention(Duration::from_secs(30 * 86_400));
///
/// let tx = client.transaction().await?;
/// let hapax = InTransaction::new(&tx);
/// if let Claimed::Granted { ticket, .. } = hapax.claim(&key, &ask).await? {
///     tx.execute("INSERT INTO invoices (order_id) VALUES ($1)", &[&"order-1"]).await?;
///     let Step::Done(_) = hapax.settle(&key, &ticket.token, "".into()).await? else {
///         return Err("too late".into()); // the transaction rolls back
///     };
///     tx.commit().await?; // the invoice and the claim, or neither
/// }
/// # Ok(()) }
/// ```
pub struct InTransaction<'a> {
    tx: Caller<'a>,
    limit: Duration,
}

impl<'a> InTransaction<'a> {
    /// hapax in this transaction, with two seconds for a call.
    pub fn new(tx: &'a Transaction<'a>) -> Self {
        Self::of(Caller::Own(tx))
    }

    pub(crate) fn of(tx: Caller<'a>) -> Self {
        Self { tx, limit: Duration::from_secs(2) }
    }

    /// How long one call may take.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Adds items to a queue in this order; one answer each. They are handed out after the commit,
    /// and never where there is none.
    pub async fn enqueue(
        &self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError> {
        let all: Vec<_> = items.iter().map(|item| (queue, item)).collect();
        self.within(async { crate::queue::enqueue::enqueue(&mut &self.tx, &all).await }).await
    }

    pub(crate) async fn receive(
        &self,
        key: &Key,
        retention: Duration,
    ) -> Result<MessageStatus, StoreError> {
        self.within(async { inbox::receive(&mut &self.tx, key, retention).await }).await
    }

    async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, StoreError> {
        let limit = self.limit;
        with_timeout(limit, async { call.await.map_err(|failure| failure.into_store(limit)) }).await
    }

    /// A batch of one.
    async fn run<W: Work>(&self, item: &W::Item) -> Result<W::Answer, Failure> {
        let mut answer = [None];
        W::run(&mut &self.tx, std::slice::from_ref(item), &mut answer).await?;
        let [answer] = answer;
        Ok(answer.ok_or_else(|| corrupt("an empty answer"))?)
    }

    async fn step(&self, key: &Key, token: &Token, act: Act) -> Result<Step, StoreError> {
        let taken = Taken { key: key.clone(), token: token.clone(), act };
        let mut patience = Patience::new(self.limit);
        self.within(async {
            loop {
                match self.run::<Stepping>(&taken).await? {
                    Some(step) => return Ok(step),
                    None => patience.wait().await?,
                }
            }
        })
        .await
    }
}

impl fmt::Debug for InTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[async_trait]
impl Claims for InTransaction<'_> {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        let asked = Asked { key: key.clone(), ask: ask.clone() };
        self.within(self.run::<Claiming>(&asked)).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.step(key, token, Act::Extend(lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        self.step(key, token, Act::Settle(value)).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.step(key, token, Act::GiveBack(how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.within(async { claims::look(&mut &self.tx, key).await }).await
    }
}

#[async_trait]
impl Records for InTransaction<'_> {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.within(async { records::get(&mut &self.tx, key).await }).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let mut patience = Patience::new(self.limit);
        self.within(async {
            loop {
                match records::put(&mut &self.tx, key, &value, expect, ttl).await? {
                    Some(put) => return Ok(put),
                    None => patience.wait().await?,
                }
            }
        })
        .await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let mut patience = Patience::new(self.limit);
        self.within(async {
            loop {
                match records::delete(&mut &self.tx, key, expect).await? {
                    Some(deleted) => return Ok(deleted),
                    None => patience.wait().await?,
                }
            }
        })
        .await
    }
}

/// What [`once_in`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "where it did not run, the answer says why"]
pub enum Once {
    /// The work ran and the claim is settled with its value. It counts when the caller commits.
    Ran(Bytes),
    /// The work did not run: it was done before, or somebody else is at it.
    Not(Claimed),
}

/// Claims the key, runs the work, and settles the claim with what the work returns, all in the
/// caller's transaction. The caller commits; where it is an error, the caller rolls back (dropping
/// the transaction does so), and it is as if nobody had asked.
///
/// # Errors
/// The work's own, or a [`StoreError`] of hapax. [`StoreError::Timeout`] where the work took
/// longer than lease and retention together, so that the claim was forgotten meanwhile.
///
/// ```no_run
/// use hapax_core::{Operation, ClaimRequest, Key, Tenant};
/// use hapax_postgres::{Once, once_in};
/// use std::time::Duration;
///
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let key = Key::command(&Tenant::default(), Operation("place-order"), "7f3a")?;
/// let ask = ClaimRequest::new(Duration::from_secs(30)).retention(Duration::from_secs(86_400));
///
/// let tx = client.transaction().await?;
/// let order = &tx;
/// let once = once_in(&tx, &key, &ask, async |_ticket| {
///     let row = order.query_one("INSERT INTO orders DEFAULT VALUES RETURNING id::text", &[]).await?;
///     Ok::<_, Box<dyn std::error::Error>>(row.get::<_, String>(0).into())
/// })
/// .await?;
/// if let Once::Ran(_id) = &once {
///     tx.commit().await?;
/// }
/// # Ok(()) }
/// ```
pub async fn once_in<E: From<StoreError>>(
    tx: &Transaction<'_>,
    key: &Key,
    ask: &ClaimRequest,
    work: impl AsyncFnOnce(Ticket) -> Result<Bytes, E>,
) -> Result<Once, E> {
    let hapax = InTransaction::new(tx);
    let ticket = match hapax.claim(key, ask).await? {
        Claimed::Granted { ticket, .. } => ticket,
        other => return Ok(Once::Not(other)),
    };
    let token = ticket.token.clone();
    let value = work(ticket).await?;
    match hapax.settle(key, &token, value.clone()).await? {
        Step::Done(_) => Ok(Once::Ran(value)),
        Step::Lost => Err(StoreError::Timeout { timeout: ask.lease + ask.retention }.into()),
    }
}
