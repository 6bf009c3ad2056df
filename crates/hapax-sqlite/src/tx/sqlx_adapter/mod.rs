//! hapax inside a transaction of `sqlx` that you own.

mod once;
mod outbox;
mod session;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::claim_rules::{self, ClaimChange, ClaimDecision, ClaimRow};
use hapax_core::inbox::{InboxError, MessageStatus};
use hapax_core::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Clock, Deleted, Expect, Fence, Fingerprint,
    GiveBack, Key, Put, Record, Step, StoreError, StoreResult, Tenant, Timestamp, Token, Version,
    millis,
};
use sqlx::Sqlite;

use crate::claims::{DELETE_CLAIM, INSERT_CLAIM, OPEN_TRANSACTION, READ_CLAIM, UPDATE_CLAIM};
use crate::records::{DELETE_RECORD, READ_RECORD, READ_VERSION, WRITE_RECORD};
use crate::tx::inbox;
use session::{SqlxParam, SqlxSession, column, decode_claim, decode_version, key_params};

pub use once::SqlxEffect;

/// The way into a transaction of `sqlx` on SQLite that you own: your rows and hapax's rows commit together,
/// or not at all. The methods are those of [`SqliteTransaction`](crate::SqliteTransaction), with `.await`.
///
/// The tables are made by [`migrate`](crate::migrate()), or by a [`SqliteStore`](crate::SqliteStore) on the same
/// file.
///
/// ```
/// use hapax_core::{Tenant, queue::QueueItem};
/// use hapax_sqlite::{HapaxSqlxTransaction, rusqlite, sqlx};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shop.db");
/// hapax_sqlite::migrate(&rusqlite::Connection::open(&path)?)?;
/// let shop = sqlx::SqlitePool::connect(&format!("sqlite://{}", path.display())).await?;
/// sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)").execute(&shop).await?;
///
/// let mut tx = shop.begin().await?;
/// sqlx::query("INSERT INTO orders (item) VALUES ('bento')").execute(&mut *tx).await?;
/// tx.hapax().enqueue(&QueueItem::new(&Tenant::default(), "orders", r#"{"n":1}"#).key("order-1")).await?;
/// tx.commit().await?; // the order and its message, or neither
/// # Ok(()) }
/// ```
pub trait HapaxSqlxTransaction: sealed::SealedSqlx {
    /// hapax inside this transaction, for the default tenant.
    fn hapax(&mut self) -> SqlxTransaction<'_>;
}

mod sealed {
    pub trait SealedSqlx {}
}

impl sealed::SealedSqlx for sqlx::Transaction<'_, Sqlite> {}

impl HapaxSqlxTransaction for sqlx::Transaction<'_, Sqlite> {
    fn hapax(&mut self) -> SqlxTransaction<'_> {
        let session = SqlxSession { connection: self, clock: None };
        SqlxTransaction { session, tenant: Tenant::default(), retention: None }
    }
}

/// hapax inside a transaction of `sqlx` on SQLite; see [`HapaxSqlxTransaction::hapax`].
///
/// Every call takes the write lock of the database, for which it waits as long as the connection's
/// `busy_timeout` (5 s by default). A transaction that has read before and is overtaken by another writer
/// cannot get it any more; begin with `BEGIN IMMEDIATE` (`pool.begin_with(…)`) to rule that out.
///
/// **If the future of a call is dropped before its end, roll back**: some of its writes may have been made.
pub struct SqlxTransaction<'a> {
    session: SqlxSession<'a>,
    tenant: Tenant,
    retention: Option<Duration>,
}

impl<'a> SqlxTransaction<'a> {
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
        self.session.clock = Some(clock);
        self
    }

    /// Asks for the claim. The answer is [`Claimed::Busy`] where another transaction holds the write lock
    /// for longer than the busy timeout, or wrote since your transaction began to read.
    pub async fn claim(&mut self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        match self.session.lock().await {
            Err(StoreError::Locked { .. }) => {
                return Ok(Claimed::Busy { lease_left: OPEN_TRANSACTION });
            }
            locked => locked?,
        }
        let now = self.session.now(true).await?;
        let (rowid, row) = self.read_claim(key).await?.unzip();
        let row = match claim_rules::claim(row.as_ref(), ask, now) {
            ClaimDecision::Answer(answer) => return Ok(answer),
            ClaimDecision::Grant { attempt } => {
                let fence = Fence(self.session.next_sequence().await?);
                claim_rules::granted(ask, fence, attempt, now)
            }
            ClaimDecision::Regrant(row) => row,
        };
        match rowid {
            Some(rowid) => self.update_claim(rowid, &row).await?,
            None => self.insert_claim(key, &row).await?,
        }
        Ok(row.grant())
    }

    /// Extends a pending claim: its lease now ends `lease` from now.
    pub async fn extend(&mut self, key: &Key, token: &Token, lease: Duration) -> StoreResult<Step> {
        self.step(key, token, &ClaimStep::Extend(lease)).await
    }

    /// Settles a pending claim with `value`.
    pub async fn settle(&mut self, key: &Key, token: &Token, value: Bytes) -> StoreResult<Step> {
        self.step_and_note(key, token, &ClaimStep::Settle(value)).await
    }

    /// Gives a pending claim back.
    pub async fn give_back(
        &mut self,
        key: &Key,
        token: &Token,
        how: GiveBack,
    ) -> StoreResult<Step> {
        self.step_and_note(key, token, &ClaimStep::GiveBack(how)).await
    }

    /// Reads a claim, as your transaction sees it.
    pub async fn look(&mut self, key: &Key) -> StoreResult<Option<ClaimView>> {
        let now = self.session.now(false).await?;
        let row = self.read_claim(key).await?.map(|(_, row)| row);
        Ok(claim_rules::look(row.as_ref(), now))
    }

    /// Says whether the consumer receives this message for the first time, and notes it, as
    /// [`SqliteTransaction::receive`](crate::SqliteTransaction::receive) does.
    pub async fn receive(
        &mut self,
        consumer: &str,
        message_id: &str,
    ) -> Result<MessageStatus, InboxError> {
        let key = Key::inbox(&self.tenant, consumer, message_id)?;
        let ask = inbox::claim_request(self.retention);
        let ticket = match inbox::first_ticket(self.claim(&key, &ask).await?)? {
            Ok(ticket) => ticket,
            Err(status) => return Ok(status),
        };
        match self.settle(&key, &ticket.token, Bytes::new()).await? {
            Step::Done(_) => Ok(MessageStatus::First),
            Step::Lost => Err(InboxError::Lost),
        }
    }

    /// Reads a record, as your transaction sees it.
    pub async fn get(&mut self, key: &Key) -> StoreResult<Option<Record>> {
        let now = self.session.now(false).await?;
        let Some(row) = self.session.first(READ_RECORD, &key_params(key)).await? else {
            return Ok(None);
        };
        let (version, expires_at) = decode_version(&row)?;
        let value = column::<Vec<u8>>(&row, 2)?.into();
        let expires_in = expires_at.map(|end| end.since(now));
        let is_alive = expires_at.is_none_or(|end| now < end);
        Ok(is_alive.then_some(Record { value, version, expires_in }))
    }

    /// Writes a record if the expectation holds.
    pub async fn put(
        &mut self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let (now, current) = self.lock_record(key).await?;
        if !expect.holds(current.as_ref().map(|(version, _)| version)) {
            return Ok(Put::Conflict);
        }
        let created = current.is_none();
        let kept = current.and_then(|(_, expires_at)| expires_at);
        let expires_at = ttl.map(|ttl| now.plus(ttl)).or(kept);
        let version = self.session.next_sequence().await?;
        let [tenant, kind, scope, name] = key_params(key);
        let expires_at = expires_at.map_or(SqlxParam::Null, |end| end.0.into());
        let value = SqlxParam::Bytes(&value);
        let params = [tenant, kind, scope, name, version.into(), expires_at, value];
        self.session.execute(WRITE_RECORD, &params).await?;
        Ok(Put::Stored { version: Version::new(version.to_string()), created })
    }

    /// Deletes a record if the expectation holds.
    pub async fn delete(&mut self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let (_, current) = self.lock_record(key).await?;
        let Some((version, _)) = current else { return Ok(Deleted::Missing) };
        if !expect.holds(Some(&version)) {
            return Ok(Deleted::Conflict);
        }
        self.session.execute(DELETE_RECORD, &key_params(key)).await?;
        Ok(Deleted::Done)
    }

    async fn step(&mut self, key: &Key, token: &Token, step: &ClaimStep) -> StoreResult<Step> {
        self.session.lock().await?;
        let now = self.session.now(true).await?;
        let Some((rowid, row)) = self.read_claim(key).await? else { return Ok(Step::Lost) };
        match claim_rules::step(Some(&row), token, step, now) {
            ClaimChange::Nothing(step) => Ok(step),
            ClaimChange::Write(row) => {
                self.update_claim(rowid, &row).await?;
                Ok(Step::Done(row.fence))
            }
            ClaimChange::Delete(fence) => {
                self.session.execute(DELETE_CLAIM, &[SqlxParam::Number(rowid)]).await?;
                Ok(Step::Done(fence))
            }
        }
    }

    async fn step_and_note(
        &mut self,
        key: &Key,
        token: &Token,
        step: &ClaimStep,
    ) -> StoreResult<Step> {
        let done = self.step(key, token, step).await?;
        if matches!(done, Step::Done(_)) {
            self.session.note_change(key).await?;
        }
        Ok(done)
    }

    /// The row of a claim, and its place in the table.
    async fn read_claim(&mut self, key: &Key) -> StoreResult<Option<(i64, ClaimRow)>> {
        let row = self.session.first(READ_CLAIM, &key_params(key)).await?;
        row.as_ref().map(|row| Ok((column(row, 10)?, decode_claim(row)?))).transpose()
    }

    async fn insert_claim(&mut self, key: &Key, row: &ClaimRow) -> StoreResult<()> {
        let params: Vec<_> = key_params(key).into_iter().chain(row_params(row)).collect();
        self.session.execute(INSERT_CLAIM, &params).await.map(drop)
    }

    async fn update_claim(&mut self, rowid: i64, row: &ClaimRow) -> StoreResult<()> {
        let rowid = SqlxParam::Number(rowid);
        let params: Vec<_> = row_params(row).into_iter().chain([rowid]).collect();
        self.session.execute(UPDATE_CLAIM, &params).await.map(drop)
    }

    /// Takes the write lock, and reads the time, and the version and expiry of the record if it lives.
    async fn lock_record(
        &mut self,
        key: &Key,
    ) -> StoreResult<(Timestamp, Option<(Version, Option<Timestamp>)>)> {
        self.session.lock().await?;
        let now = self.session.now(true).await?;
        let row = self.session.first(READ_VERSION, &key_params(key)).await?;
        let found = row.as_ref().map(decode_version).transpose()?;
        Ok((now, found.filter(|(_, expires_at)| expires_at.is_none_or(|end| now < end))))
    }
}

/// The columns of a claim after its key.
fn row_params(row: &ClaimRow) -> [SqlxParam<'_>; 10] {
    [
        SqlxParam::Number(row.phase.code().into()),
        row.fence.0.into(),
        SqlxParam::Number(row.attempt.into()),
        SqlxParam::Text(row.token.as_str()),
        SqlxParam::text_or_null(row.fingerprint.as_ref().map(Fingerprint::as_str)),
        row.granted_at.0.into(),
        row.lease_end.0.into(),
        millis(row.retention).into(),
        row.expires_at.0.into(),
        SqlxParam::Bytes(&row.value),
    ]
}

impl fmt::Debug for SqlxTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxTransaction").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}
