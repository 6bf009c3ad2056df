//! Reading the newest entries of many partitions.

use hapax_core::Key;
use hapax_core::log::{Cursor, Epochs, PartitionTail, TailChange, TailPosition};

use super::attach::epochs;
use crate::connect::session::{SqlRow, SqlSession};
use crate::error::{SqlResult, corrupt};
use crate::row;

const TAIL: &str = include_str!("../sql/tail.sql");

/// A position after every entry, one below the maximum so that `+ 1` does not overflow.
pub(super) const END: i64 = i64::MAX - 1;

/// A position is a number with the epoch of the partition at that time. After a failover that lost
/// entries the numbers are given out again under a new epoch, and a reader has to go back.
pub(crate) async fn tail<S: SqlSession>(
    session: &mut S,
    from: &[(u16, TailPosition)],
    at_most: usize,
) -> SqlResult<Vec<PartitionTail>> {
    let partitions: Vec<i32> = from.iter().map(|(partition, _)| (*partition).into()).collect();
    let mut starts: Vec<TailStart> = from.iter().map(|(_, from)| TailStart::new(from)).collect();
    loop {
        let after: Vec<i64> = starts.iter().map(|start| start.after).collect();
        let rows = session.rows(TAIL, &[&partitions, &after, &row::to_i64(at_most as u64)]).await?;
        let mut answers: Vec<Vec<&SqlRow>> = vec![Vec::new(); from.len()];
        for row in &rows {
            answers.get_mut(row::index(row)?).ok_or_else(|| corrupt("an ordinal"))?.push(row);
        }
        let mut back = false;
        for (start, rows) in starts.iter_mut().zip(&answers) {
            let head = rows.first().ok_or_else(|| corrupt("no such partition"))?;
            back |= start.goes_back(&epochs(head)?);
        }
        if !back {
            let answer = |(start, rows): (&TailStart, &Vec<&SqlRow>)| start.answer(rows, at_most);
            return starts.iter().zip(&answers).map(answer).collect();
        }
    }
}

/// Where the read of one partition starts.
struct TailStart {
    /// `None` for the start and the end, which are valid in every epoch.
    cursor: Option<Cursor>,
    after: i64,
    lost: bool,
    /// A read from the start loses nothing.
    is_start: bool,
}

impl TailStart {
    fn new(from: &TailPosition) -> Self {
        match (from.as_str(), from.as_str().parse::<Cursor>()) {
            ("", _) => Self { cursor: None, after: 0, lost: false, is_start: true },
            ("$", _) => Self { cursor: None, after: END, lost: false, is_start: false },
            (_, Ok(cursor)) => {
                let after = row::to_i64(cursor.offset);
                Self { cursor: Some(cursor), after, lost: false, is_start: false }
            }
            // A position of another store, or from before this one was recreated.
            (_, Err(_)) => Self { cursor: None, after: 0, lost: true, is_start: false },
        }
    }

    /// Whether the last position read is not part of this history. Then the start moves back to where
    /// the two histories part.
    fn goes_back(&mut self, epochs: &Epochs) -> bool {
        let Some(cursor) = self.cursor.take() else { return false };
        if epochs.at(cursor.offset) == cursor.epoch {
            return false;
        }
        let shared = epochs.end_of(cursor.epoch);
        self.lost = shared.is_none();
        self.after = row::to_i64(shared.unwrap_or(0));
        true
    }

    fn answer(&self, rows: &[&SqlRow], at_most: usize) -> SqlResult<PartitionTail> {
        let head = rows.first().ok_or_else(|| corrupt("no such partition"))?;
        let epochs = epochs(head)?;
        let position = |offset: u64| {
            TailPosition::new(&Cursor { epoch: epochs.at(offset), offset }.to_string())
        };
        let mut changes = Vec::with_capacity(rows.len());
        for row in rows {
            let Some(at) = row.try_get::<Option<i64>>("position")? else { continue };
            let text = |column| row.try_get::<&str>(column);
            let job = Key::stored(text("tenant")?, "job", text("domain")?, text("name")?);
            changes.push(TailChange {
                job: job.ok_or_else(|| corrupt("a job"))?,
                offset: row::number(row, "place")?,
                position: position(at.unsigned_abs()),
            });
        }
        let (last, floor) = (row::number(head, "last")?, row::number(head, "floor")?);
        let next = match changes.last() {
            Some(change) if changes.len() == at_most => change.position.clone(),
            _ if self.after == END => position(last),
            _ if at_most == 0 => position(self.after.unsigned_abs()),
            _ => position(last.max(self.after.unsigned_abs())),
        };
        let lost = self.lost || !self.is_start && self.after.unsigned_abs() < floor;
        Ok(PartitionTail { changes, next, lost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_of(from: &str, epochs: &str) -> (bool, i64, bool) {
        let mut start = TailStart::new(&TailPosition::new(from));
        let back = start.goes_back(&epochs.parse().unwrap());
        (back, start.after, start.lost)
    }

    #[test]
    fn tail_goes_back_to_where_the_histories_part() {
        assert_eq!(start_of("7-40", "7@1,9@42"), (false, 40, false));
        assert_eq!(start_of("7-41", "7@1,9@42"), (false, 41, false));
        assert_eq!(start_of("7-45", "7@1,9@42"), (true, 41, false), "42 to 45 are other ones now");
        assert_eq!(start_of("9-45", "7@1,9@42"), (false, 45, false));
        assert_eq!(start_of("8-45", "7@1,9@42"), (true, 0, true), "of a history unknown here");
        assert_eq!(start_of("no position", "7@1"), (false, 0, true));
    }
}
