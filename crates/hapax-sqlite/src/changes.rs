//! Which waiters a commit wakes, for other processes: each commit notes the keys in the file, and the
//! writers of the other processes read them when they notice the commit.

use std::collections::{BTreeSet, HashMap};

use hapax_core::queue::QueueName;
use hapax_core::{Key, StoreResult, WakeRegistry};

use crate::session::Session;

/// A commit that concerns more keys than this wakes all waiters.
const MAX_KEYS: usize = 100;
/// How many notes are kept: a process that is further behind wakes all its waiters.
pub(crate) const KEPT: i64 = 10_000;
/// After how many notes the oldest are deleted: deleting touches a page that the insert does not.
pub(crate) const TRIM_INTERVAL: i64 = 256;
/// How many notes are read at once; more wake all waiters.
const MAX_READ: usize = 1000;

pub(crate) const INSERT_NOTE: &str = "INSERT INTO hapax_changes (digest) VALUES (?1)";
pub(crate) const DELETE_NOTES: &str = "DELETE FROM hapax_changes WHERE id <= ?1";

/// Notes the keys with these digests in the open write transaction. Returns the first and the last
/// number of the notes.
pub(crate) fn note(session: Session<'_>, digests: &[u64]) -> StoreResult<Option<(i64, i64)>> {
    let distinct: BTreeSet<u64> = digests.iter().copied().collect();
    let mut notes: Vec<_> = distinct.into_iter().map(|digest| Some(digest.cast_signed())).collect();
    if notes.len() > MAX_KEYS {
        notes = vec![None];
    }
    let mut range = None;
    for digest in notes {
        let id = session.insert(INSERT_NOTE, [digest])?;
        range = Some((range.map_or(id, |(first, _)| first), id));
        if id % TRIM_INTERVAL == 0 {
            session.execute(DELETE_NOTES, [id - KEPT])?;
        }
    }
    Ok(range)
}

/// How far the notes of other processes were read.
#[derive(Default)]
pub(crate) struct ChangeReader {
    /// The number of the last note; `None` before the first look.
    last: Option<i64>,
    /// How many items each queue has got.
    arrivals: HashMap<String, i64>,
}

impl ChangeReader {
    /// Skips the notes of a commit of this process, unless another one got in before it.
    pub(crate) fn skip_own(&mut self, range: Option<(i64, i64)>) {
        if let (Some(last), Some((first, end))) = (&mut self.last, range)
            && first == *last + 1
        {
            *last = end;
        }
    }

    /// Wakes the waiters of what other processes have changed since the last look; all of them at the
    /// first look, and where that cannot be told.
    pub(crate) fn wake(&mut self, session: Session<'_>, hub: &WakeRegistry) -> StoreResult<()> {
        let arrivals = self.read_arrivals(session)?;
        let known = match self.last {
            Some(last) => self.read_notes(session, last)?,
            None => {
                let sql = "SELECT coalesce(max(id), 0) FROM hapax_changes";
                self.last = Some(session.one(sql, [], |row| row.get(0))?);
                None
            }
        };
        match known {
            Some(digests) => {
                for digest in digests.into_iter().chain(arrivals) {
                    hub.wake(digest);
                }
            }
            None => hub.wake_all(),
        }
        Ok(())
    }

    /// The digests after this note; `None` if they are too many, or some were deleted.
    fn read_notes(&mut self, session: Session<'_>, last: i64) -> StoreResult<Option<Vec<u64>>> {
        let notes: Vec<(i64, Option<i64>)> = session.all(
            "SELECT id, digest FROM hapax_changes WHERE id > ?1 ORDER BY id LIMIT 1001",
            [last],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        if let Some((id, _)) = notes.last() {
            self.last = Some(*id);
        }
        if notes.len() > MAX_READ {
            let sql = "SELECT max(id) FROM hapax_changes";
            self.last = session.one(sql, [], |row| row.get(0))?;
            return Ok(None);
        }
        let is_complete = notes.first().is_none_or(|(id, _)| *id == last + 1);
        let digests: Option<Vec<_>> =
            notes.into_iter().map(|(_, digest)| digest.map(i64::cast_unsigned)).collect();
        Ok(digests.filter(|_| is_complete))
    }

    /// The digests of the queues that got items since the last look, from whatever program.
    fn read_arrivals(&mut self, session: Session<'_>) -> StoreResult<Vec<u64>> {
        let now: HashMap<String, i64> =
            session.all("SELECT queue, items FROM hapax_arrivals", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        let before = std::mem::replace(&mut self.arrivals, now);
        let changed = self.arrivals.iter().filter(|(queue, n)| before.get(*queue) != Some(*n));
        let key = |(queue, _): (&String, &i64)| QueueName::new(queue).ok()?.arrivals_key();
        Ok(changed.filter_map(key).map(|key: Key| key.digest()).collect())
    }
}
