//! Cached statements on a connection, and the conversions that every table needs.

use std::cell::Cell;

use hapax_core::{Clock, Key, StoreResult, Timestamp};
use rusqlite::{Connection, OptionalExtension, Params, Row};

use crate::error::{column_error, store_error};
use crate::store_clock::{StoreClock, machine_time};

pub(crate) const INCREMENT_SEQUENCE: &str =
    "UPDATE hapax_meta SET value = value + 1 WHERE name = 'sequence'";
pub(crate) const READ_SEQUENCE: &str = "SELECT value FROM hapax_meta WHERE name = 'sequence'";
const STORE_SEQUENCE: &str = "UPDATE hapax_meta SET value = ?1 WHERE name = 'sequence'";

/// A connection with an open transaction, and the clock that leases and retentions are measured by.
#[derive(Clone, Copy)]
pub(crate) struct Session<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) clock: SessionClock<'a>,
    /// `None` where each number of the sequence is stored as it is given out: in a caller's own transaction.
    pub(crate) sequence: Option<&'a BatchSequence>,
}

/// The numbers of the sequence that one transaction of the writer gives out. They are read and stored once for all
/// its calls, because two statements for each would be an eighth of a claim's work.
#[derive(Default)]
pub(crate) struct BatchSequence(Cell<Option<u64>>);

impl BatchSequence {
    /// Forgets the numbers of the last transaction, which may have been rolled back.
    pub(crate) fn reset(&self) {
        self.0.set(None);
    }

    fn next(&self, session: &Session<'_>) -> StoreResult<u64> {
        let last = match self.0.get() {
            Some(last) => last,
            None => session.one(READ_SEQUENCE, [], |row| row.unsigned(0))?,
        };
        self.0.set(Some(last + 1));
        Ok(last + 1)
    }

    /// Stores the last number, if one was given out, before the transaction is committed.
    pub(crate) fn store(&self, connection: &Connection) -> StoreResult<()> {
        match self.0.get() {
            Some(last) => execute(connection, STORE_SEQUENCE, [to_i64(last)]).map(drop),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum SessionClock<'a> {
    /// Of a connection of the store.
    Store(&'a StoreClock),
    /// Of the caller's choice.
    Chosen(&'a dyn Clock),
    /// Of the file, read in every call: for a transaction of the caller's own connection.
    File,
    /// Read before the snapshot that the calls of a reader share.
    Fixed { now: Timestamp, wall: Timestamp },
}

impl Session<'_> {
    /// The time by which leases and retentions are measured.
    pub(crate) fn now(&self) -> StoreResult<Timestamp> {
        Ok(match self.clock {
            SessionClock::Store(clock) => clock.now(),
            SessionClock::Chosen(clock) => clock.now(),
            SessionClock::File => StoreClock::of_file(self.connection, machine_time())?.0.now(),
            SessionClock::Fixed { now, .. } => now,
        })
    }

    /// The wall clock: for times that are shown, and that decide nothing.
    pub(crate) fn wall(&self) -> Timestamp {
        match self.clock {
            SessionClock::Store(clock) => clock.wall(),
            SessionClock::Chosen(clock) => clock.now(),
            SessionClock::File => machine_time().wall(),
            SessionClock::Fixed { wall, .. } => wall,
        }
    }

    /// Runs a statement and returns the number of changed rows.
    pub(crate) fn execute(&self, sql: &str, params: impl Params) -> StoreResult<usize> {
        execute(self.connection, sql, params)
    }

    /// Runs an `INSERT` of one row and returns its id.
    pub(crate) fn insert(&self, sql: &str, params: impl Params) -> StoreResult<i64> {
        let statement = self.connection.prepare_cached(sql);
        statement.and_then(|mut statement| statement.insert(params)).map_err(store_error)
    }

    /// The first row, if there is one.
    pub(crate) fn first<T>(
        &self,
        sql: &str,
        params: impl Params,
        decode: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Option<T>> {
        let query = self.connection.prepare_cached(sql);
        query.and_then(|mut query| query.query_row(params, decode).optional()).map_err(column_error)
    }

    /// The only row, which must be there.
    pub(crate) fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        decode: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<T> {
        let found = self.first(sql, params, decode)?;
        found.ok_or_else(|| column_error(rusqlite::Error::QueryReturnedNoRows))
    }

    /// All rows.
    pub(crate) fn all<T, C: FromIterator<T>>(
        &self,
        sql: &str,
        params: impl Params,
        decode: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<C> {
        let query = self.connection.prepare_cached(sql);
        query.and_then(|mut query| query.query_map(params, decode)?.collect()).map_err(column_error)
    }

    /// The rows before the first one that `decode` answers with `None`.
    pub(crate) fn some<T>(
        &self,
        sql: &str,
        params: impl Params,
        mut decode: impl FnMut(&Row<'_>) -> rusqlite::Result<Option<T>>,
    ) -> StoreResult<Vec<T>> {
        let read = || {
            let mut query = self.connection.prepare_cached(sql)?;
            let (mut rows, mut taken) = (query.query(params)?, Vec::new());
            while let Some(row) = rows.next()? {
                match decode(row)? {
                    Some(one) => taken.push(one),
                    None => break,
                }
            }
            Ok(taken)
        };
        read().map_err(column_error)
    }

    /// The next number of the sequence that fences and versions come from. The caller holds the write
    /// lock. (Two statements cost a third of one with RETURNING, which builds a table in memory.)
    pub(crate) fn next_sequence(&self) -> StoreResult<u64> {
        if let Some(batch) = self.sequence {
            return batch.next(self);
        }
        self.execute(INCREMENT_SEQUENCE, [])?;
        self.one(READ_SEQUENCE, [], |row| row.unsigned(0))
    }
}

/// Columns without negative numbers. The engine's integers are signed, and not every supported version of
/// `rusqlite` reads them as `u64`.
pub(crate) trait UnsignedColumns {
    /// A negative number is an error.
    fn unsigned(&self, column: usize) -> rusqlite::Result<u64>;

    /// As [`Self::unsigned`], for a column that may be `NULL`.
    fn unsigned_or_null(&self, column: usize) -> rusqlite::Result<Option<u64>>;
}

impl UnsignedColumns for Row<'_> {
    fn unsigned(&self, column: usize) -> rusqlite::Result<u64> {
        let found = self.unsigned_or_null(column)?;
        found.ok_or_else(|| {
            rusqlite::Error::InvalidColumnType(column, String::new(), rusqlite::types::Type::Null)
        })
    }

    fn unsigned_or_null(&self, column: usize) -> rusqlite::Result<Option<u64>> {
        let found: Option<i64> = self.get(column)?;
        let convert = |number: i64| {
            let out_of_range = rusqlite::Error::IntegralValueOutOfRange(column, number);
            u64::try_from(number).map_err(|_| out_of_range)
        };
        found.map(convert).transpose()
    }
}

/// Runs a cached statement and returns the number of changed rows.
pub(crate) fn execute(
    connection: &Connection,
    sql: &str,
    params: impl Params,
) -> StoreResult<usize> {
    let statement = connection.prepare_cached(sql);
    statement.and_then(|mut statement| statement.execute(params)).map_err(store_error)
}

/// Saturates: times and durations beyond the range of the column are its maximum.
pub(crate) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The columns `tenant, kind, scope, name` of a key.
pub(crate) fn key_columns(key: &Key) -> [&str; 4] {
    [key.tenant().as_str(), key.kind().as_str(), key.scope(), key.name()]
}

/// Writes a value that differs each time, because SQLite skips a write that changes nothing.
pub(crate) fn write_probe(session: Session<'_>) -> StoreResult<()> {
    let sql = "INSERT INTO hapax_meta (name, value) VALUES ('probe', 0) \
               ON CONFLICT DO UPDATE SET value = 1 - value";
    session.execute(sql, []).map(drop)
}
