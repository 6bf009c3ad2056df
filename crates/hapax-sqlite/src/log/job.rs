//! The row of a job: the head of its log.

use hapax_core::log::{Appended, Cursor, Epoch, Epochs, LogEvent, MAX_NUMBER};
use hapax_core::{Key, StoreResult, Timestamp};
use rusqlite::{Row, params};

use crate::session::{Session, UnsignedColumns, to_i64};

pub(super) struct JobRow {
    pub(super) id: i64,
    pub(super) epochs: Epochs,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) closed: bool,
    /// The id of the entry with the highest seq, which is the job's latest state.
    pub(super) state: i64,
    pub(super) state_seq: u64,
    pub(super) expires_at: Timestamp,
}

impl JobRow {
    /// Reads the live row of the key, expired or not.
    pub(super) fn read(session: Session<'_>, job: &Key) -> StoreResult<Option<Self>> {
        session.first(
            "SELECT id, epochs, first, last, closed, state, state_seq, expires_at \
             FROM hapax_jobs WHERE tenant = ?1 AND domain = ?2 AND name = ?3 AND live = 1",
            job_columns(job),
            Self::decode,
        )
    }

    fn decode(row: &Row<'_>) -> rusqlite::Result<Self> {
        let epochs = row.get_ref(1)?.as_str()?.parse();
        Ok(Self {
            id: row.get(0)?,
            epochs: epochs.map_err(|_| rusqlite::Error::InvalidQuery)?,
            first: row.unsigned(2)?,
            last: row.unsigned(3)?,
            closed: row.get(4)?,
            state: row.get(5)?,
            state_seq: row.unsigned(6)?,
            expires_at: Timestamp(row.unsigned(7)?),
        })
    }

    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }

    /// Starts a new log under the key. An earlier log of the same key is left to the sweep.
    pub(super) fn insert(
        session: Session<'_>,
        job: &Key,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> StoreResult<Self> {
        let epochs = Epochs::new(next_epoch(session, now)?);
        let [tenant, domain, name] = job_columns(job);
        session.execute(
            "UPDATE hapax_jobs SET live = 0, look_at = ?4 \
             WHERE tenant = ?1 AND domain = ?2 AND name = ?3 AND live = 1",
            params![tenant, domain, name, to_i64(now.0)],
        )?;
        let id = session.insert(
            "INSERT INTO hapax_jobs (tenant, domain, name, live, epochs, first, last, \
                    closed, state, state_seq, expires_at, look_at) \
             VALUES (?1, ?2, ?3, 1, ?4, 1, 0, 0, 0, 0, ?5, ?5)",
            params![tenant, domain, name, epochs.to_string(), to_i64(expires_at.0)],
        )?;
        let (first, last, closed) = (1, 0, false);
        Ok(Self { id, epochs, first, last, closed, state: 0, state_seq: 0, expires_at })
    }

    pub(super) fn write(&self, session: Session<'_>) -> StoreResult<()> {
        let written = session.execute(
            "UPDATE hapax_jobs SET first = ?2, last = ?3, closed = ?4, state = ?5, \
                    state_seq = ?6, expires_at = ?7 WHERE id = ?1",
            params![
                self.id,
                to_i64(self.first),
                to_i64(self.last),
                self.closed,
                self.state,
                to_i64(self.state_seq),
                to_i64(self.expires_at.0),
            ],
        );
        written.map(drop)
    }

    /// The answer to an event that is a duplicate, a conflict or too late. Duplicates come first,
    /// because a retry must get its first answer even after the job was closed.
    pub(super) fn known_event(
        &self,
        session: Session<'_>,
        event: &LogEvent,
    ) -> StoreResult<Option<Appended>> {
        let before: Option<(u64, bool)> = session.first(
            "SELECT offset, fingerprint = ?4 FROM hapax_entries \
             WHERE job = ?1 AND stage = ?2 AND seq = ?3",
            params![self.id, &*event.stage, to_i64(event.seq), event.fingerprint.as_str()],
            |row| Ok((row.unsigned(0)?, row.get(1)?)),
        )?;
        Ok(match before {
            Some((offset, true)) => Some(Appended::Duplicate(self.at(offset))),
            Some((_, false)) => Some(Appended::Conflict),
            None => self.closed.then_some(Appended::Closed),
        })
    }

    /// The cursor of an offset.
    pub(super) fn at(&self, offset: u64) -> Cursor {
        Cursor { epoch: self.epochs.at(offset), offset }
    }
}

/// Epochs grow and follow the clock, so that after the file was deleted or restored from a backup
/// new logs do not match the cursors of lost ones.
fn next_epoch(session: Session<'_>, now: Timestamp) -> StoreResult<Epoch> {
    session.execute(
        "INSERT INTO hapax_meta (name, value) VALUES ('epoch', ?1) \
         ON CONFLICT DO UPDATE SET value = max(value + 1, excluded.value)",
        [to_i64(now.0.min(MAX_NUMBER))],
    )?;
    let sql = "SELECT value FROM hapax_meta WHERE name = 'epoch'";
    session.one(sql, [], |row| row.unsigned(0)).map(Epoch)
}

fn job_columns(job: &Key) -> [&str; 3] {
    [job.tenant().as_str(), job.scope(), job.name()]
}
