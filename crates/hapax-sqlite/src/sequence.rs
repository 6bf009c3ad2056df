//! The sequence that fences and record versions come from: one number in the file, which never goes back.

use std::cell::Cell;
use std::ops::Range;

use hapax_core::StoreResult;

use crate::session::{Session, UnsignedColumns};

pub(crate) const INCREMENT_SEQUENCE: &str =
    "UPDATE hapax_meta SET value = value + 1 WHERE name = 'sequence'";
pub(crate) const READ_SEQUENCE: &str = "SELECT value FROM hapax_meta WHERE name = 'sequence'";

/// How many numbers the writer reserves at once. A restart skips those that it has not given out.
pub(crate) const RESERVED: u64 = 256;
pub(crate) const RESERVE_NUMBERS: &str =
    "UPDATE hapax_meta SET value = value + 256 WHERE name = 'sequence'";

/// Numbers that the writer has reserved and not given out yet, so that not every commit writes the page of
/// the sequence. They must be forgotten when another connection has committed, because that one may have
/// given out greater numbers, and after a rollback, which takes the reservation back.
#[derive(Default)]
pub(crate) struct ReservedNumbers(Cell<Range<u64>>);

impl ReservedNumbers {
    pub(crate) fn forget(&self) {
        self.0.take();
    }

    fn next(&self, session: Session<'_>) -> StoreResult<u64> {
        let mut left = self.0.take();
        if left.is_empty() {
            session.execute(RESERVE_NUMBERS, [])?;
            let last = read(session)?;
            left = last + 1 - RESERVED..last + 1;
        }
        let number = left.start;
        self.0.set(number + 1..left.end);
        Ok(number)
    }
}

/// The next number. The caller holds the write lock. (Two statements cost a third of one with RETURNING,
/// which builds a table in memory.)
pub(crate) fn next_number(session: Session<'_>) -> StoreResult<u64> {
    match session.reserved {
        Some(reserved) => reserved.next(session),
        None => {
            session.execute(INCREMENT_SEQUENCE, [])?;
            read(session)
        }
    }
}

fn read(session: Session<'_>) -> StoreResult<u64> {
    session.one(READ_SEQUENCE, [], |row| row.unsigned(0))
}
