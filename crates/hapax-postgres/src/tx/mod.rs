//! hapax inside a transaction that the caller owns.

mod inbox;
pub(crate) mod lock;
mod once;
mod outbox;
#[cfg(feature = "sqlx")]
pub(crate) mod sqlx_adapter;

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Deleted, Expect, GiveBack, Key, Put, Record, Step,
    StoreResult, Tenant, Token, with_timeout,
};
use tokio_postgres::Transaction;

use crate::connect::session::{Params, SqlRow, SqlSession, typed};
use crate::error::SqlResult;
use crate::{claims, records};
use lock::LockRetry;

pub use once::EffectFuture;

/// The way into a transaction that you own, of `tokio-postgres` or, with the feature `sqlx`, of
/// `sqlx`: your rows and hapax's rows commit together, or not at all. That is the one place where an
/// effect happens **exactly once**.
///
/// Call [`migrate`](crate::migrate()) once on your database; the tables must be where the
/// connection's `search_path` leads. `hapax-sqlite` has the same methods for transactions of
/// `rusqlite`.
///
/// ```no_run
/// use hapax_core::{Expect, Key, Put, Tenant};
/// use hapax_postgres::{HapaxTransaction, tokio_postgres::Client};
///
/// # async fn example(client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
/// // A consumer of the event bus stores its position with the effect.
/// let position = Key::record(&Tenant::default(), "billing/partition-7")?;
/// let mut tx = client.transaction().await?;
/// let put = tx.hapax().put(&position, "42".into(), &Expect::Absent, None).await?;
/// let Put::Stored { .. } = put else {
///     return Err("another consumer is ahead".into());
/// };
/// tx.execute("INSERT INTO invoices (order_id) VALUES ($1)", &[&"order-1"]).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub trait HapaxTransaction: sealed::Sealed + Sized {
    /// hapax inside this transaction, for the default tenant, with a timeout of two seconds.
    fn hapax(&mut self) -> PostgresTransaction<'_, Self> {
        PostgresTransaction {
            tx: self,
            tenant: Tenant::default(),
            retention: None,
            timeout: Duration::from_secs(2),
        }
    }
}

mod sealed {
    pub trait Sealed: crate::connect::session::SqlSession {}
}

impl sealed::Sealed for Transaction<'_> {}
impl HapaxTransaction for Transaction<'_> {}

/// Nothing is prepared by name in a connection that hapax does not own.
impl SqlSession for Transaction<'_> {
    async fn rows(&mut self, sql: &'static str, params: Params<'_>) -> SqlResult<Vec<SqlRow>> {
        let rows = self.query_typed(sql, &typed(params).collect::<Vec<_>>()).await?;
        Ok(rows.into_iter().map(SqlRow::Tokio).collect())
    }
}

/// hapax inside a transaction; see [`HapaxTransaction::hapax`].
///
/// While the transaction is open, any other claim of the same key, in a transaction or through a
/// [`PostgresStore`](crate::PostgresStore), is answered [`Claimed::Busy`](hapax_core::Claimed::Busy)
/// at once and never waits. A step or a put on the same key from elsewhere is retried until its
/// timeout. In a transaction of level *repeatable read* or *serializable* a lost race is the error
/// [`StoreError::Locked`](hapax_core::StoreError::Locked), as for any other statement there.
///
/// **After an error roll back.** PostgreSQL has usually aborted the transaction already, and after a
/// timeout it is unknown what the server did.
///
/// A settle counts from the commit on, so waiters find it at their next poll; call
/// [`PostgresStore::wake_claim`](crate::PostgresStore::wake_claim) after the commit to wake them at
/// once.
pub struct PostgresTransaction<'a, T> {
    tx: &'a mut T,
    tenant: Tenant,
    retention: Option<Duration>,
    timeout: Duration,
}

impl<T: HapaxTransaction> PostgresTransaction<'_, T> {
    /// The tenant of [`once`](Self::once) and [`receive`](Self::receive).
    #[must_use]
    pub fn tenant(mut self, tenant: &Tenant) -> Self {
        self.tenant = tenant.clone();
        self
    }

    /// How long [`once`](Self::once) keeps its answer (a day by default) and
    /// [`receive`](Self::receive) recognises a message (30 days by default).
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = Some(retention);
        self
    }

    hapax_core::builder_methods! {
        /// The longest that one call may take.
        timeout: Duration;
    }

    /// Asks for the claim. Never waits for another transaction.
    pub async fn claim(&mut self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        run_with_timeout(self.timeout, claims::function::claim(self.tx, key, ask)).await
    }

    /// Makes the lease of a pending claim end `lease` from now.
    pub async fn extend(&mut self, key: &Key, token: &Token, lease: Duration) -> StoreResult<Step> {
        self.step(key, token, ClaimStep::Extend(lease)).await
    }

    /// Settles a pending claim with `value`.
    pub async fn settle(&mut self, key: &Key, token: &Token, value: Bytes) -> StoreResult<Step> {
        self.step(key, token, ClaimStep::Settle(value)).await
    }

    /// Gives a pending claim back.
    pub async fn give_back(
        &mut self,
        key: &Key,
        token: &Token,
        how: GiveBack,
    ) -> StoreResult<Step> {
        self.step(key, token, ClaimStep::GiveBack(how)).await
    }

    /// Reads a claim, as your transaction sees it.
    pub async fn look(&mut self, key: &Key) -> StoreResult<Option<ClaimView>> {
        run_with_timeout(self.timeout, claims::look(self.tx, key)).await
    }

    /// Reads a record, as your transaction sees it.
    pub async fn get(&mut self, key: &Key) -> StoreResult<Option<Record>> {
        run_with_timeout(self.timeout, records::get(self.tx, key)).await
    }

    /// Writes a record if the expectation holds.
    pub async fn put(
        &mut self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let put = records::put(self.tx, LockRetry::new(self.timeout), key, value, expect, ttl);
        run_with_timeout(self.timeout, put).await
    }

    /// Deletes a record if the expectation holds.
    pub async fn delete(&mut self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let delete = records::delete(self.tx, LockRetry::new(self.timeout), key, expect);
        run_with_timeout(self.timeout, delete).await
    }

    async fn step(&mut self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step> {
        let mut retry = LockRetry::new(self.timeout);
        run_with_timeout(self.timeout, async {
            loop {
                match claims::function::step(self.tx, key, token, &step).await? {
                    Some(step) => return Ok(step),
                    None => retry.wait().await?,
                }
            }
        })
        .await
    }
}

async fn run_with_timeout<V>(
    timeout: Duration,
    call: impl Future<Output = SqlResult<V>>,
) -> StoreResult<V> {
    with_timeout(timeout, async { call.await.map_err(|error| error.into_store_error(timeout)) })
        .await
}

impl<T> fmt::Debug for PostgresTransaction<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTransaction").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}
