//! Reading the newest entries of many partitions.

use hapax_core::log::{PartitionTail, TailChange, TailPosition};
use hapax_core::{Clock, Key, StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{column_error, store_error};
use crate::row::to_i64;

pub(crate) fn tail(
    connection: &Connection,
    clock: &dyn Clock,
    from: &[(u16, TailPosition)],
    at_most: usize,
) -> Result<Vec<PartitionTail>, StoreError> {
    let now = clock.now();
    let end = last_entry(connection).map_err(store_error)?;
    let tail = |(partition, from): &(u16, TailPosition)| {
        let (after, unknown) = match from.as_str() {
            "" => (0, false),
            "$" => (end, false),
            text => match text.parse() {
                Ok(entry) if (0..=end).contains(&entry) => (entry, false),
                // A position of another file, or from after a backup that was restored.
                _ => (0, true),
            },
        };
        if after == end {
            return Ok(PartitionTail { changes: Vec::new(), next: position(after), lost: unknown });
        }
        let partition = PartitionReader { connection, number: *partition, now };
        let mut tail = partition.after(after, at_most.max(1), end)?;
        // A reader from the start has not seen the trimmed entries, so it lost nothing.
        tail.lost = unknown || tail.lost && *from != TailPosition::start();
        Ok(tail)
    };
    from.iter().map(tail).collect::<rusqlite::Result<_>>().map_err(column_error)
}

struct PartitionReader<'c> {
    connection: &'c Connection,
    number: u16,
    now: Timestamp,
}

impl PartitionReader<'_> {
    fn after(&self, after: i64, at_most: usize, end: i64) -> rusqlite::Result<PartitionTail> {
        let mut lost = after < self.forgotten()?;
        let mut changes = Vec::new();
        let mut query = self.connection.prepare_cached(
            "SELECT e.id, e.offset, j.tenant, j.domain, j.name, \
                    j.live = 1 AND j.expires_at > ?3 \
             FROM hapax_entries AS e JOIN hapax_jobs AS j ON j.id = e.job \
             WHERE e.partition = ?1 AND e.id > ?2 ORDER BY e.id",
        )?;
        let mut rows = query.query(params![self.number, after, to_i64(self.now.0)])?;
        while changes.len() < at_most {
            let Some(row) = rows.next()? else { break };
            // Expired, but not swept yet.
            if !row.get::<_, bool>(5)? {
                lost = true;
                continue;
            }
            let text = |column| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
            let job = Key::stored(text(2)?, "job", text(3)?, text(4)?)
                .ok_or(rusqlite::Error::InvalidQuery)?;
            changes.push(TailChange { job, offset: row.get(1)?, position: position(row.get(0)?) });
        }
        let full = changes.last().filter(|_| changes.len() >= at_most);
        let next = full.map_or_else(|| position(end), |last| last.position.clone());
        Ok(PartitionTail { changes, next, lost })
    }

    fn forgotten(&self) -> rusqlite::Result<i64> {
        let found = self
            .connection
            .prepare_cached("SELECT forgotten FROM hapax_partitions WHERE partition = ?1")?
            .query_row([self.number], |row| row.get(0))
            .optional()?;
        Ok(found.unwrap_or(0))
    }
}

/// The id of the last entry that was ever appended, kept or not.
fn last_entry(connection: &Connection) -> rusqlite::Result<i64> {
    let found = connection
        .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'hapax_entries'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(0))
}

fn position(entry: i64) -> TailPosition {
    TailPosition::new(&entry.to_string())
}
