//! Appending events to the logs of jobs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use hapax_core::log::{Appended, LogEvent, LogRetention};
use hapax_core::{Key, StoreResult, Timestamp};
use rusqlite::params;

use super::job::JobRow;
use crate::session::{Session, to_i64};

/// The caller holds the write lock, and rolls back if this fails.
pub(crate) fn append(
    session: Session<'_>,
    partitions: u16,
    events: &[LogEvent],
    keep: &LogRetention,
) -> StoreResult<Vec<Appended>> {
    let now = session.now()?;
    let mut call = AppendCall { session, now, keep, partitions, jobs: HashMap::new() };
    // Nothing may run after an error: on a full disk SQLite has ended the transaction by then.
    let answers = events.iter().map(|event| call.add(event)).collect::<Result<_, _>>()?;
    call.finish()?;
    Ok(answers)
}

/// One append. The row of a job is read with its first event and written after its last one.
struct AppendCall<'a> {
    session: Session<'a>,
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
    fn add(&mut self, event: &'a LogEvent) -> StoreResult<Appended> {
        let (session, expires_at) = (self.session, self.now.plus(self.keep.retention));
        let touched = match self.jobs.entry(&event.job) {
            Entry::Occupied(touched) => touched.into_mut(),
            Entry::Vacant(vacant) => {
                let found = JobRow::read(session, &event.job)?;
                let row = match found.filter(|row| !row.is_expired(self.now)) {
                    Some(row) => row,
                    None => JobRow::insert(session, &event.job, self.now, expires_at)?,
                };
                let partition = event.job.partition(self.partitions);
                vacant.insert(TouchedJob { row, partition, changed: false })
            }
        };
        if let Some(answer) = touched.row.known_event(session, event)? {
            return Ok(answer);
        }
        touched.changed = true;
        touched.append(session, event)?;
        touched.row.expires_at = expires_at;
        Ok(Appended::Published(touched.row.at(touched.row.last)))
    }

    fn finish(&mut self) -> StoreResult<()> {
        for touched in self.jobs.values_mut().filter(|touched| touched.changed) {
            touched.trim(self.session, self.keep.max_entries.max(1))?;
            touched.row.write(self.session)?;
        }
        Ok(())
    }
}

impl TouchedJob {
    fn append(&mut self, session: Session<'_>, event: &LogEvent) -> StoreResult<()> {
        let row = &mut self.row;
        row.last += 1;
        row.closed = event.closes;
        let entry = session.insert(
            "INSERT INTO hapax_entries \
                    (job, offset, stage, seq, closes, fingerprint, partition, payload) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            params![
                row.id,
                to_i64(row.last),
                &*event.stage,
                to_i64(event.seq),
                event.closes,
                event.fingerprint.as_str(),
                self.partition,
                &event.payload[..],
            ],
        )?;
        if event.seq >= row.state_seq {
            let before = std::mem::replace(&mut row.state, entry);
            row.state_seq = event.seq;
            // A trimmed entry kept its payload only while it was the latest state.
            if row.first > 1 {
                let sql = "UPDATE hapax_entries SET payload = NULL \
                           WHERE id = ?1 AND partition IS NULL";
                session.execute(sql, [before])?;
            }
        }
        Ok(())
    }

    /// Removes the oldest entries beyond this many from the partition's tail, and drops their payloads
    /// (except the latest state's). Their rows stay, so that duplicates are still recognised.
    fn trim(&mut self, session: Session<'_>, entries: u64) -> StoreResult<()> {
        let row = &mut self.row;
        let (before, first) = (row.first, row.first.max((row.last + 1).saturating_sub(entries)));
        if first == before {
            return Ok(());
        }
        row.first = first;
        session.execute(
            "UPDATE hapax_entries \
             SET partition = NULL, payload = CASE WHEN id = ?4 THEN payload END \
             WHERE job = ?1 AND offset >= ?2 AND offset < ?3",
            params![row.id, to_i64(before), to_i64(first), row.state],
        )?;
        let sql = "SELECT id FROM hapax_entries WHERE job = ?1 AND offset = ?2";
        let last = session.one(sql, params![row.id, to_i64(first - 1)], |row| row.get(0))?;
        note_forgotten(session, self.partition, last)
    }
}

/// Notes that the tail of the partition has lost entries up to this one.
pub(super) fn note_forgotten(session: Session<'_>, partition: u16, entry: i64) -> StoreResult<()> {
    let sql = "INSERT INTO hapax_partitions (partition, forgotten) VALUES (?1, ?2) \
               ON CONFLICT DO UPDATE SET forgotten = max(forgotten, excluded.forgotten)";
    session.execute(sql, params![partition, entry]).map(drop)
}
