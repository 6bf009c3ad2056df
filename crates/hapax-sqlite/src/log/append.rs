//! Appending events to the logs of jobs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use hapax_core::log::{Appended, LogEvent, LogRetention};
use hapax_core::{Clock, Key, StoreError, Timestamp};
use rusqlite::{Connection, params};

use super::job::JobRow;
use crate::error::store_error;
use crate::row::to_i64;

/// The caller holds the write lock, and rolls back if this fails.
pub(crate) fn append(
    connection: &Connection,
    clock: &dyn Clock,
    partitions: u16,
    events: &[LogEvent],
    keep: &LogRetention,
) -> Result<Vec<Appended>, StoreError> {
    let now = clock.now();
    let mut call = AppendCall { connection, now, keep, partitions, jobs: HashMap::new() };
    // Nothing may run after an error: on a full disk SQLite has ended the transaction by then.
    let answers = events.iter().map(|event| call.add(event)).collect::<Result<_, _>>()?;
    call.finish()?;
    Ok(answers)
}

/// One append. The row of a job is read with its first event and written after its last one.
struct AppendCall<'a> {
    connection: &'a Connection,
    now: Timestamp,
    keep: &'a LogRetention,
    partitions: u16,
    jobs: HashMap<&'a Key, TouchedJob>,
}

struct TouchedJob {
    row: JobRow,
    partition: u16,
    changed: bool,
}

impl<'a> AppendCall<'a> {
    fn add(&mut self, event: &'a LogEvent) -> Result<Appended, StoreError> {
        let (connection, expires_at) = (self.connection, self.now.plus(self.keep.retention));
        let touched = match self.jobs.entry(&event.job) {
            Entry::Occupied(touched) => touched.into_mut(),
            Entry::Vacant(vacant) => {
                let found = JobRow::read(connection, &event.job)?;
                let row = match found.filter(|row| !row.is_expired(self.now)) {
                    Some(row) => row,
                    None => JobRow::insert(connection, &event.job, self.now, expires_at)?,
                };
                let partition = event.job.partition(self.partitions);
                vacant.insert(TouchedJob { row, partition, changed: false })
            }
        };
        if let Some(answer) = touched.row.known_event(connection, event)? {
            return Ok(answer);
        }
        touched.changed = true;
        touched.append(connection, event)?;
        touched.row.expires_at = expires_at;
        Ok(Appended::Published(touched.row.at(touched.row.last)))
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        for touched in self.jobs.values_mut().filter(|touched| touched.changed) {
            touched.trim(self.connection, self.keep.max_entries.max(1))?;
            touched.row.write(self.connection)?;
        }
        Ok(())
    }
}

impl TouchedJob {
    fn append(&mut self, connection: &Connection, event: &LogEvent) -> Result<(), StoreError> {
        let row = &mut self.row;
        row.last += 1;
        row.closed = event.closes;
        let entry = connection
            .prepare_cached(
                "INSERT INTO hapax_entries \
                        (job, offset, stage, seq, closes, fingerprint, partition, payload) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )
            .and_then(|mut statement| {
                statement.insert(params![
                    row.id,
                    to_i64(row.last),
                    &*event.stage,
                    to_i64(event.seq),
                    event.closes,
                    event.fingerprint.as_str(),
                    self.partition,
                    &event.payload[..],
                ])
            })
            .map_err(store_error)?;
        if event.seq >= row.state_seq {
            let before = std::mem::replace(&mut row.state, entry);
            row.state_seq = event.seq;
            // A trimmed entry kept its payload only while it was the latest state.
            if row.first > 1 {
                connection
                    .prepare_cached(
                        "UPDATE hapax_entries SET payload = NULL \
                         WHERE id = ?1 AND partition IS NULL",
                    )
                    .and_then(|mut statement| statement.execute([before]))
                    .map_err(store_error)?;
            }
        }
        Ok(())
    }

    /// Drops payloads and tail pointers of entries beyond the maximum; their identities stay, so that
    /// duplicates are still recognised.
    fn trim(&mut self, connection: &Connection, entries: u64) -> Result<(), StoreError> {
        let row = &mut self.row;
        let (before, first) = (row.first, row.first.max((row.last + 1).saturating_sub(entries)));
        if first == before {
            return Ok(());
        }
        row.first = first;
        let trim = || -> rusqlite::Result<i64> {
            connection
                .prepare_cached(
                    "UPDATE hapax_entries \
                     SET partition = NULL, payload = CASE WHEN id = ?4 THEN payload END \
                     WHERE job = ?1 AND offset >= ?2 AND offset < ?3",
                )?
                .execute(params![row.id, to_i64(before), to_i64(first), row.state])?;
            connection
                .prepare_cached("SELECT id FROM hapax_entries WHERE job = ?1 AND offset = ?2")?
                .query_row(params![row.id, to_i64(first - 1)], |row| row.get(0))
        };
        trim()
            .and_then(|last| note_forgotten(connection, self.partition, last))
            .map_err(store_error)
    }
}

/// Notes that the tail of the partition has lost entries up to this one.
pub(super) fn note_forgotten(
    connection: &Connection,
    partition: u16,
    entry: i64,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO hapax_partitions (partition, forgotten) VALUES (?1, ?2) \
             ON CONFLICT DO UPDATE SET forgotten = max(forgotten, excluded.forgotten)",
        )?
        .execute(params![partition, entry])
        .map(drop)
}
