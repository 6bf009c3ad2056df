//! Runs the statements of hapax on a connection of `sqlx`. The texts are those that the rest of this crate
//! runs on `rusqlite`.

use hapax_core::claim_rules::{ClaimPhase, ClaimRow};
use hapax_core::{
    Clock, Fence, Fingerprint, Key, StoreError, StoreResult, Timestamp, Token, Version,
};
use rusqlite::ffi;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Decode, Row as _, Sqlite, Type};

use crate::changes::{DELETE_NOTES, INSERT_NOTE, KEPT, TRIM_INTERVAL};
use crate::error::{internal_error, store_error};
use crate::session::{INCREMENT_SEQUENCE, READ_SEQUENCE, key_columns, to_i64};
use crate::store_clock::{READ_TIME, StoreClock, StoredTime, WRITE_TIME, machine_time};
use crate::tx::lock::TAKE_LOCK;

/// A parameter of a statement.
#[derive(Clone, Copy)]
pub(super) enum SqlxParam<'a> {
    Number(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Null,
}

impl<'a> SqlxParam<'a> {
    pub(super) fn text_or_null(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Self::Text)
    }

    pub(super) fn number_or_null(number: Option<i64>) -> Self {
        number.map_or(Self::Null, Self::Number)
    }
}

impl From<u64> for SqlxParam<'_> {
    fn from(number: u64) -> Self {
        Self::Number(to_i64(number))
    }
}

/// The columns `tenant, kind, scope, name` of a key.
pub(super) fn key_params(key: &Key) -> [SqlxParam<'_>; 4] {
    key_columns(key).map(SqlxParam::Text)
}

/// A query with its parameters. (A macro, because the type of a query differs between versions of `sqlx`.)
macro_rules! bound_query {
    ($sql:expr, $params:expr) => {{
        // Not cached: the connection's cache is for the caller's own statements.
        let mut query = sqlx::query::<Sqlite>($sql).persistent(false);
        for param in $params {
            query = match *param {
                SqlxParam::Number(number) => query.bind(number),
                SqlxParam::Text(text) => query.bind(text.to_owned()),
                SqlxParam::Bytes(bytes) => query.bind(bytes.to_vec()),
                SqlxParam::Null => query.bind(None::<i64>),
            };
        }
        query
    }};
}

/// A connection of `sqlx` with an open transaction.
pub(super) struct SqlxSession<'c> {
    pub(super) connection: &'c mut SqliteConnection,
    /// Instead of the clock of the file.
    pub(super) clock: Option<&'c dyn Clock>,
}

impl SqlxSession<'_> {
    /// Runs a statement and returns the number of changed rows.
    pub(super) async fn execute(
        &mut self,
        sql: &'static str,
        params: &[SqlxParam<'_>],
    ) -> StoreResult<u64> {
        let done = bound_query!(sql, params).execute(&mut *self.connection).await;
        done.map(|done| done.rows_affected()).map_err(sqlx_error)
    }

    /// The first row, if there is one.
    pub(super) async fn first(
        &mut self,
        sql: &'static str,
        params: &[SqlxParam<'_>],
    ) -> StoreResult<Option<SqliteRow>> {
        bound_query!(sql, params).fetch_optional(&mut *self.connection).await.map_err(sqlx_error)
    }

    /// Takes the write lock before anything is read, so that decisions are made on the stored rows and not
    /// on an old snapshot of the caller's transaction. Waits as long as the connection's busy timeout.
    pub(super) async fn lock(&mut self) -> StoreResult<()> {
        self.require_transaction().await?;
        self.execute(TAKE_LOCK, &[]).await.map(drop)
    }

    /// `sqlx` does not notice that SQLite has rolled back a transaction by itself, as it does on a full
    /// disk. A `BEGIN` that succeeds shows it.
    pub(super) async fn require_transaction(&mut self) -> StoreResult<()> {
        if self.execute("BEGIN", &[]).await.is_err() {
            return Ok(());
        }
        self.execute("ROLLBACK", &[]).await?;
        Err(internal_error("SQLite has rolled back the transaction; begin it again"))
    }

    /// Runs before several writes that are one unit; [`Self::end_savepoint`] runs after them.
    pub(super) async fn begin_savepoint(&mut self) -> StoreResult<()> {
        self.execute("SAVEPOINT hapax", &[]).await.map(drop)
    }

    /// Keeps the writes since [`Self::begin_savepoint`], or undoes them after an error.
    pub(super) async fn end_savepoint<T, E: From<StoreError>>(
        &mut self,
        done: Result<T, E>,
    ) -> Result<T, E> {
        if done.is_err() {
            let _ = self.execute("ROLLBACK TO hapax", &[]).await;
            let _ = self.execute("RELEASE hapax", &[]).await;
            return done;
        }
        self.execute("RELEASE hapax", &[]).await?;
        done
    }

    /// The time by which leases and retentions are measured. `locked`: the transaction holds the write lock.
    pub(super) async fn now(&mut self, locked: bool) -> StoreResult<Timestamp> {
        if let Some(clock) = self.clock {
            return Ok(clock.now());
        }
        let row = self.first(READ_TIME, &[]).await?.ok_or_else(corrupt)?;
        let mut columns = [None; 4];
        for (index, value) in columns.iter_mut().enumerate() {
            *value = column::<Option<i64>>(&row, index)?;
        }
        let (clock, changed) =
            StoreClock::from_stored(StoredTime::from_columns(columns), machine_time());
        if let Some(time) = changed.filter(|_| locked) {
            self.execute(WRITE_TIME, &time.columns().map(SqlxParam::Number)).await?;
        }
        Ok(clock.now())
    }

    /// The wall clock: for times that are shown, and that decide nothing.
    pub(super) fn wall(&self) -> Timestamp {
        self.clock.map_or_else(|| machine_time().wall(), |clock| clock.now())
    }

    pub(super) async fn next_sequence(&mut self) -> StoreResult<u64> {
        self.execute(INCREMENT_SEQUENCE, &[]).await?;
        let row = self.first(READ_SEQUENCE, &[]).await?.ok_or_else(corrupt)?;
        unsigned(&row, 0)
    }

    /// Notes a changed key for the waiters of other processes, which see it with the commit.
    pub(super) async fn note_change(&mut self, key: &Key) -> StoreResult<()> {
        let digest = SqlxParam::Number(key.digest().cast_signed());
        let done = bound_query!(INSERT_NOTE, &[digest]).execute(&mut *self.connection).await;
        let id = done.map_err(sqlx_error)?.last_insert_rowid();
        if id % TRIM_INTERVAL == 0 {
            self.execute(DELETE_NOTES, &[SqlxParam::Number(id - KEPT)]).await?;
        }
        Ok(())
    }
}

/// The row of a claim, with the columns of [`READ_CLAIM`](crate::claims::READ_CLAIM).
pub(super) fn decode_claim(row: &SqliteRow) -> StoreResult<ClaimRow> {
    let phase = i16::try_from(column::<i64>(row, 0)?).ok().and_then(ClaimPhase::from_code);
    Ok(ClaimRow {
        phase: phase.ok_or_else(corrupt)?,
        fence: Fence(unsigned(row, 1)?),
        attempt: u32::try_from(unsigned(row, 2)?).map_err(|_| corrupt())?,
        token: Token::presented(column(row, 3)?),
        fingerprint: column::<Option<&str>>(row, 4)?.and_then(Fingerprint::new),
        granted_at: Timestamp(unsigned(row, 5)?),
        lease_end: Timestamp(unsigned(row, 6)?),
        retention: std::time::Duration::from_millis(unsigned(row, 7)?),
        expires_at: Timestamp(unsigned(row, 8)?),
        value: column::<Vec<u8>>(row, 9)?.into(),
    })
}

/// The version and the expiry of a record: its first two columns.
pub(super) fn decode_version(row: &SqliteRow) -> StoreResult<(Version, Option<Timestamp>)> {
    let version = Version::new(unsigned(row, 0)?.to_string());
    let expires_at = column::<Option<i64>>(row, 1)?;
    let expires_at = expires_at.map(u64::try_from).transpose().map_err(|_| corrupt())?;
    Ok((version, expires_at.map(Timestamp)))
}

pub(super) fn unsigned(row: &SqliteRow, index: usize) -> StoreResult<u64> {
    u64::try_from(column::<i64>(row, index)?).map_err(|_| corrupt())
}

pub(super) fn column<'r, T>(row: &'r SqliteRow, index: usize) -> StoreResult<T>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    // The driver's text may quote the value.
    row.try_get(index).map_err(|_| corrupt())
}

fn corrupt() -> StoreError {
    StoreError::Corrupt { reason: "a column holds what hapax never writes".into() }
}

/// Classifies an error of `sqlx` by the engine's code in it.
fn sqlx_error(error: sqlx::Error) -> StoreError {
    let sqlx::Error::Database(answer) = &error else { return StoreError::unavailable(error) };
    match answer.code().and_then(|code| code.parse().ok()) {
        Some(code) => {
            let message = Some(answer.message().to_owned());
            store_error(rusqlite::Error::SqliteFailure(ffi::Error::new(code), message))
        }
        None => StoreError::internal(error),
    }
}
