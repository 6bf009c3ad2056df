use std::collections::HashMap;
use std::collections::hash_map::Entry;

use hapax_core::log::{Appended, LogEvent, LogRetention};
use hapax_core::{Clock, Key, StoreError, Timestamp};
use rusqlite::{Connection, params};

use super::job::Life;
use crate::error::fault;
use crate::row::stored;

/// Appends the events. The caller holds the write lock, and rolls back where this fails.
pub(crate) fn append(
    connection: &Connection,
    clock: &dyn Clock,
    partitions: u16,
    events: &[LogEvent],
    keep: &LogRetention,
) -> Result<Vec<Appended>, StoreError> {
    let now = clock.now();
    let mut appending = Appending { connection, now, keep, partitions, lives: HashMap::new() };
    // Nothing may follow an error: on a full disk the engine has ended the transaction by then.
    let answers = events.iter().map(|event| appending.add(event)).collect::<Result<_, _>>()?;
    appending.finish()?;
    Ok(answers)
}

/// One call. A job is read with its first event and written after its last one.
struct Appending<'a> {
    connection: &'a Connection,
    now: Timestamp,
    keep: &'a LogRetention,
    partitions: u16,
    lives: HashMap<&'a Key, Touched>,
}

struct Touched {
    life: Life,
    partition: u16,
    changed: bool,
}

impl<'a> Appending<'a> {
    fn add(&mut self, event: &'a LogEvent) -> Result<Appended, StoreError> {
        let (connection, expires_at) = (self.connection, self.now.plus(self.keep.retention));
        let touched = match self.lives.entry(&event.job) {
            Entry::Occupied(touched) => touched.into_mut(),
            Entry::Vacant(place) => {
                let found = Life::read(connection, &event.job)?;
                let life = match found.filter(|life| !life.is_over(self.now)) {
                    Some(life) => life,
                    None => Life::begin(connection, &event.job, self.now, expires_at)?,
                };
                let partition = event.job.partition(self.partitions);
                place.insert(Touched { life, partition, changed: false })
            }
        };
        if let Some(answer) = touched.life.known(connection, event)? {
            return Ok(answer);
        }
        touched.changed = true;
        touched.append(connection, event)?;
        touched.life.expires_at = expires_at;
        Ok(Appended::Published(touched.life.at(touched.life.last)))
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        for touched in self.lives.values_mut().filter(|touched| touched.changed) {
            touched.trim(self.connection, self.keep.max_entries.max(1))?;
            touched.life.write(self.connection)?;
        }
        Ok(())
    }
}

impl Touched {
    fn append(&mut self, connection: &Connection, event: &LogEvent) -> Result<(), StoreError> {
        let life = &mut self.life;
        life.last += 1;
        life.closed = event.closes;
        let entry = connection
            .prepare_cached(
                "INSERT INTO hapax_entries \
                        (job, offset, stage, seq, closes, fingerprint, partition, payload) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )
            .and_then(|mut statement| {
                statement.insert(params![
                    life.id,
                    stored(life.last),
                    &*event.stage,
                    stored(event.seq),
                    event.closes,
                    event.fingerprint.as_str(),
                    self.partition,
                    &event.payload[..],
                ])
            })
            .map_err(fault)?;
        if event.seq >= life.state_seq {
            let before = std::mem::replace(&mut life.state, entry);
            life.state_seq = event.seq;
            // What was trimmed was kept only for as long as it was the state.
            if life.first > 1 {
                connection
                    .prepare_cached(
                        "UPDATE hapax_entries SET payload = NULL \
                         WHERE id = ?1 AND partition IS NULL",
                    )
                    .and_then(|mut statement| statement.execute([before]))
                    .map_err(fault)?;
            }
        }
        Ok(())
    }

    /// Takes the payloads of what is too much, and the pointers in the tail; identities stay.
    fn trim(&mut self, connection: &Connection, entries: u64) -> Result<(), StoreError> {
        let life = &mut self.life;
        let (before, first) = (life.first, life.first.max((life.last + 1).saturating_sub(entries)));
        if first == before {
            return Ok(());
        }
        life.first = first;
        let trimmed = || -> rusqlite::Result<i64> {
            connection
                .prepare_cached(
                    "UPDATE hapax_entries \
                     SET partition = NULL, payload = CASE WHEN id = ?4 THEN payload END \
                     WHERE job = ?1 AND offset >= ?2 AND offset < ?3",
                )?
                .execute(params![life.id, stored(before), stored(first), life.state])?;
            connection
                .prepare_cached("SELECT id FROM hapax_entries WHERE job = ?1 AND offset = ?2")?
                .query_row(params![life.id, stored(first - 1)], |row| row.get(0))
        };
        trimmed().and_then(|last| forgotten(connection, self.partition, last)).map_err(fault)
    }
}

/// Remembers that the tail of the partition has lost entries up to this one.
pub(super) fn forgotten(
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
