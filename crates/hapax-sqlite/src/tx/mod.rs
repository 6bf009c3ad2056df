//! hapax inside a transaction that you own: your rows and hapax's rows commit together, or not at
//! all. That is the one place where an effect happens **exactly once**.
//!
//! Call [`migrate`](crate::migrate) once on your database. Then `tx.hapax()` works in every
//! transaction of `rusqlite`: [`once`](SqliteTransaction::once) runs an effect at most once per key,
//! [`receive`](SqliteTransaction::receive) does so for messages,
//! [`enqueue`](SqliteTransaction::enqueue) sends messages, and the methods of [`hapax_core::Claims`]
//! and [`hapax_core::Records`] are there under their own names. With the feature `sqlx` transactions of
//! `sqlx` have the same methods (`HapaxSqlxTransaction`); `hapax-postgres` has them for transactions of
//! `tokio-postgres` and `sqlx`.
//!
//! Everything rolls back with the transaction. A fence that was rolled back may be given out again,
//! so pass a fence on only after the commit. Waiters in other tasks and processes notice the commit
//! within some tens of milliseconds.

mod inbox;
pub(crate) mod lock;
mod once;
mod outbox;
mod savepoint;
#[cfg(feature = "sqlx")]
pub(crate) mod sqlx_adapter;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Clock, Deleted, Expect, GiveBack, Key, Put,
    Record, Step, StoreResult, Tenant, Token,
};
use rusqlite::{Connection, Savepoint, Transaction};

use crate::session::{Session, SessionClock};
use crate::{changes, claims, records};

/// The way into a transaction of `rusqlite` that you own.
///
/// ```
/// use hapax_core::{Expect, Key, Put, Tenant};
/// use hapax_sqlite::{HapaxTransaction, migrate, rusqlite::Connection};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("billing.db");
/// let mut billing = Connection::open(path)?;
/// migrate(&billing)?;
/// billing.execute_batch("CREATE TABLE invoices (order_id TEXT)")?;
///
/// // A consumer of the event bus stores its position with the effect.
/// let position = Key::record(&Tenant::default(), "billing/partition-7")?;
/// let tx = billing.transaction()?;
/// let Put::Stored { .. } = tx.hapax().put(&position, "42".into(), &Expect::Absent, None)? else {
///     return Err("another consumer is ahead".into());
/// };
/// tx.execute("INSERT INTO invoices VALUES ('order-1')", [])?;
/// tx.commit()?;
/// # Ok(()) }
/// ```
pub trait HapaxTransaction: sealed::Sealed {
    /// hapax inside this transaction, for the default tenant.
    fn hapax(&self) -> SqliteTransaction<'_>;
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for Connection {}
impl sealed::Sealed for Transaction<'_> {}
impl sealed::Sealed for Savepoint<'_> {}

/// For a transaction that was begun with a statement. Without an open transaction every call is an
/// error.
impl HapaxTransaction for Connection {
    fn hapax(&self) -> SqliteTransaction<'_> {
        SqliteTransaction {
            session: Session { connection: self, clock: SessionClock::File, sequence: None },
            tenant: Tenant::default(),
            retention: None,
        }
    }
}

impl HapaxTransaction for Transaction<'_> {
    fn hapax(&self) -> SqliteTransaction<'_> {
        (**self).hapax()
    }
}

impl HapaxTransaction for Savepoint<'_> {
    fn hapax(&self) -> SqliteTransaction<'_> {
        (**self).hapax()
    }
}

/// hapax inside a transaction of `rusqlite`; see [`HapaxTransaction::hapax`].
pub struct SqliteTransaction<'a> {
    session: Session<'a>,
    tenant: Tenant,
    retention: Option<Duration>,
}

impl<'a> SqliteTransaction<'a> {
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

    /// The clock that leases and retentions are measured by; by default that of the file, which every
    /// store on it has, too.
    #[must_use]
    pub fn clock(mut self, clock: &'a dyn Clock) -> Self {
        self.session.clock = SessionClock::Chosen(clock);
        self
    }

    /// Asks for the claim. Never waits for another transaction: where one holds the write lock, or
    /// wrote since your transaction began to read, the answer is [`Claimed::Busy`].
    ///
    /// (The connection's busy timeout is set to zero meanwhile and restored. A busy *handler* of
    /// yours would be lost: with one, take the write lock first with `BEGIN IMMEDIATE`.)
    pub fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        claims::claim(self.session, key, ask)
    }

    /// Extends a pending claim: its lease now ends `lease` from now.
    pub fn extend(&self, key: &Key, token: &Token, lease: Duration) -> StoreResult<Step> {
        claims::step(self.session, key, token, &ClaimStep::Extend(lease))
    }

    /// Settles a pending claim with `value`.
    pub fn settle(&self, key: &Key, token: &Token, value: Bytes) -> StoreResult<Step> {
        self.step_and_note(key, token, &ClaimStep::Settle(value))
    }

    /// Gives a pending claim back.
    pub fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> StoreResult<Step> {
        self.step_and_note(key, token, &ClaimStep::GiveBack(how))
    }

    /// Notes the step for the waiters of other processes, which see it with the commit.
    fn step_and_note(&self, key: &Key, token: &Token, step: &ClaimStep) -> StoreResult<Step> {
        let done = claims::step(self.session, key, token, step)?;
        if matches!(done, Step::Done(_)) {
            changes::note(self.session, &[key.digest()])?;
        }
        Ok(done)
    }

    /// Reads a claim, as your transaction sees it.
    pub fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        claims::look(self.session, key)
    }

    /// Reads a record, as your transaction sees it.
    pub fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        records::get(self.session, key)
    }

    /// Writes a record if the expectation holds.
    pub fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        records::put(self.session, key, &value, expect, ttl)
    }

    /// Deletes a record if the expectation holds.
    pub fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        records::delete(self.session, key, expect)
    }
}

impl fmt::Debug for SqliteTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTransaction").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}
