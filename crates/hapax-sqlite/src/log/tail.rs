//! Reading the newest entries of many partitions.

use hapax_core::log::{PartitionTail, TailChange, TailPosition};
use hapax_core::{Key, StoreResult, Timestamp};
use rusqlite::params;

use crate::error::column_error;
use crate::session::{Session, UnsignedColumns, to_i64};

pub(crate) fn tail(
    session: Session<'_>,
    from: &[(u16, TailPosition)],
    at_most: usize,
) -> StoreResult<Vec<PartitionTail>> {
    let now = session.now()?;
    // The id of the last entry that was ever appended, kept or not.
    let sql = "SELECT seq FROM sqlite_sequence WHERE name = 'hapax_entries'";
    let end: i64 = session.first(sql, [], |row| row.get(0))?.unwrap_or(0);
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
        let partition = PartitionReader { session, number: *partition, now };
        let mut tail = partition.after(after, at_most.max(1), end)?;
        // A reader from the start has not seen the trimmed entries, so it lost nothing.
        tail.lost = unknown || tail.lost && *from != TailPosition::start();
        Ok(tail)
    };
    from.iter().map(tail).collect()
}

struct PartitionReader<'c> {
    session: Session<'c>,
    number: u16,
    now: Timestamp,
}

impl PartitionReader<'_> {
    fn after(&self, after: i64, at_most: usize, end: i64) -> StoreResult<PartitionTail> {
        let sql = "SELECT forgotten FROM hapax_partitions WHERE partition = ?1";
        let forgotten: Option<i64> = self.session.first(sql, [self.number], |row| row.get(0))?;
        let lost = after < forgotten.unwrap_or(0);
        let (changes, expired) = self.changes(after, at_most).map_err(column_error)?;
        let full = changes.last().filter(|_| changes.len() >= at_most);
        let next = full.map_or_else(|| position(end), |last| last.position.clone());
        Ok(PartitionTail { changes, next, lost: lost || expired })
    }

    /// The next changes, and whether entries were left out because their jobs have expired.
    fn changes(&self, after: i64, at_most: usize) -> rusqlite::Result<(Vec<TailChange>, bool)> {
        let (mut changes, mut expired) = (Vec::new(), false);
        let mut query = self.session.connection.prepare_cached(
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
                expired = true;
                continue;
            }
            let text = |column| row.get_ref(column)?.as_str().map_err(rusqlite::Error::from);
            let job = Key::stored(text(2)?, "job", text(3)?, text(4)?)
                .ok_or(rusqlite::Error::InvalidQuery)?;
            changes.push(TailChange {
                job,
                offset: row.unsigned(1)?,
                position: position(row.get(0)?),
            });
        }
        Ok((changes, expired))
    }
}

fn position(entry: i64) -> TailPosition {
    TailPosition::new(&entry.to_string())
}
