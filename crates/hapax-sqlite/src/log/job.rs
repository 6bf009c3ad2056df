//! One life of a job's log, between memory and its row.

use hapax_core::log::{Appended, Cursor, Epoch, Epochs, LogEvent, MAX_NUMBER};
use hapax_core::{Key, StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::fault;
use crate::row::{damaged, stored};

pub(super) struct Life {
    pub(super) id: i64,
    pub(super) epochs: Epochs,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) closed: bool,
    /// The id of the entry with the highest seq.
    pub(super) state: i64,
    pub(super) state_seq: u64,
    pub(super) expires_at: Timestamp,
}

impl Life {
    /// The one that the key means, even where it has expired.
    pub(super) fn read(connection: &Connection, job: &Key) -> Result<Option<Self>, StoreError> {
        connection
            .prepare_cached(
                "SELECT id, epochs, first, last, closed, state, state_seq, expires_at \
                 FROM hapax_jobs WHERE tenant = ?1 AND domain = ?2 AND name = ?3 AND live = 1",
            )
            .and_then(|mut query| {
                query.query_row(parts(job), |row| Ok(Self::decode(row))).optional()
            })
            .map_err(fault)?
            .transpose()
            .map_err(damaged)
    }

    fn decode(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let epochs = row.get_ref(1)?.as_str()?.parse();
        Ok(Self {
            id: row.get(0)?,
            epochs: epochs.map_err(|_| rusqlite::Error::InvalidQuery)?,
            first: row.get(2)?,
            last: row.get(3)?,
            closed: row.get(4)?,
            state: row.get(5)?,
            state_seq: row.get(6)?,
            expires_at: Timestamp(row.get(7)?),
        })
    }

    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }

    /// Begins a log. Whatever the key meant before is left to the sweep.
    pub(super) fn begin(
        connection: &Connection,
        job: &Key,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<Self, StoreError> {
        let epochs = Epochs::new(next_epoch(connection, now)?);
        let [tenant, domain, name] = parts(job);
        let begun = || -> rusqlite::Result<i64> {
            connection
                .prepare_cached(
                    "UPDATE hapax_jobs SET live = 0, look_at = ?4 \
                     WHERE tenant = ?1 AND domain = ?2 AND name = ?3 AND live = 1",
                )?
                .execute(params![tenant, domain, name, stored(now.0)])?;
            connection
                .prepare_cached(
                    "INSERT INTO hapax_jobs (tenant, domain, name, live, epochs, first, last, \
                            closed, state, state_seq, expires_at, look_at) \
                     VALUES (?1, ?2, ?3, 1, ?4, 1, 0, 0, 0, 0, ?5, ?5)",
                )?
                .insert(params![tenant, domain, name, epochs.to_string(), stored(expires_at.0)])
        };
        let id = begun().map_err(fault)?;
        Ok(Self {
            id,
            epochs,
            first: 1,
            last: 0,
            closed: false,
            state: 0,
            state_seq: 0,
            expires_at,
        })
    }

    pub(super) fn write(&self, connection: &Connection) -> Result<(), StoreError> {
        connection
            .prepare_cached(
                "UPDATE hapax_jobs SET first = ?2, last = ?3, closed = ?4, state = ?5, \
                        state_seq = ?6, expires_at = ?7 WHERE id = ?1",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    self.id,
                    stored(self.first),
                    stored(self.last),
                    self.closed,
                    self.state,
                    stored(self.state_seq),
                    stored(self.expires_at.0),
                ])
            })
            .map(drop)
            .map_err(fault)
    }

    /// What is known of the event before it is appended. A retry must find its first answer also
    /// after the job was closed, so that is asked last.
    pub(super) fn known(
        &self,
        connection: &Connection,
        event: &LogEvent,
    ) -> Result<Option<Appended>, StoreError> {
        let before: Option<(u64, bool)> = connection
            .prepare_cached(
                "SELECT offset, fingerprint = ?4 FROM hapax_entries \
                 WHERE job = ?1 AND stage = ?2 AND seq = ?3",
            )
            .and_then(|mut query| {
                let seq = stored(event.seq);
                let identity = params![self.id, &*event.stage, seq, event.fingerprint.as_str()];
                query.query_row(identity, |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(damaged)?;
        Ok(match before {
            Some((offset, true)) => Some(Appended::Duplicate(self.at(offset))),
            Some((_, false)) => Some(Appended::Conflict),
            None => self.closed.then_some(Appended::Closed),
        })
    }

    /// The epoch of an entry that is too old for the list is unknown, and no reader's cursor.
    pub(super) fn at(&self, offset: u64) -> Cursor {
        Cursor { epoch: self.epochs.at(offset).unwrap_or(Epoch(0)), offset }
    }
}

/// Grows, and follows the clock: where somebody deletes the file or puts back an older one, new logs
/// do not meet the cursors of those that were lost.
fn next_epoch(connection: &Connection, now: Timestamp) -> Result<Epoch, StoreError> {
    let taken = || -> rusqlite::Result<u64> {
        connection
            .prepare_cached(
                "INSERT INTO hapax_meta (name, value) VALUES ('epoch', ?1) \
                 ON CONFLICT DO UPDATE SET value = max(value + 1, excluded.value)",
            )?
            .execute([stored(now.0.min(MAX_NUMBER))])?;
        connection
            .prepare_cached("SELECT value FROM hapax_meta WHERE name = 'epoch'")?
            .query_row([], |row| row.get(0))
    };
    taken().map(Epoch).map_err(fault)
}

fn parts(job: &Key) -> [&str; 3] {
    [job.tenant().as_str(), job.scope(), job.name()]
}
