//! Ranges of producer numbers, one for each stage.

use std::ops::RangeInclusive;

use super::NewEvent;
use crate::log::MAX_NUMBER;

/// Which numbers belong to which stage. The eleventh event of a stage that has ten is an error
/// instead of the first one of the next stage.
///
/// ```
/// use hapax_core::bus::{StageError, Stages};
/// let stages = Stages::default();
/// assert_eq!(stages.seq("vision", 0), Ok(10));
/// assert_eq!(stages.seq("vision", 9), Ok(19));
/// assert_eq!(stages.seq("vision", 10), Err(StageError::Full { places: 10 }));
///
/// let mine = Stages::new([("upload", 0..=99), ("scan", 100..=199)]).unwrap();
/// assert_eq!(mine.event("files", "job-1", "scan", 3).unwrap().seq, 103);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages(Vec<(String, RangeInclusive<u64>)>);

/// Why a stage has no such number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// It has had as many events as it has numbers.
    #[error("the stage has {places} numbers, and this is one more; give it a wider range")]
    Full {
        /// How many events it may have.
        places: u64,
    },
    /// There is no such stage.
    #[error("the stage has no range; name it in Stages::new")]
    Unknown,
    /// A range is empty, too high, or meets another one.
    #[error("a stage's range is empty, meets another one, or goes beyond {MAX_NUMBER}")]
    Range,
}

impl Stages {
    /// Stages and their numbers, which must not meet.
    pub fn new<S: Into<String>>(
        ranges: impl IntoIterator<Item = (S, RangeInclusive<u64>)>,
    ) -> Result<Self, StageError> {
        let mut stages: Vec<(String, RangeInclusive<u64>)> = Vec::new();
        for (stage, range) in ranges {
            let stage = stage.into();
            let meets = |other: &RangeInclusive<u64>| {
                range.start() <= other.end() && other.start() <= range.end()
            };
            let taken = stages.iter().any(|(name, other)| *name == stage || meets(other));
            if range.is_empty() || *range.end() > MAX_NUMBER || taken {
                return Err(StageError::Range);
            }
            stages.push((stage, range));
        }
        Ok(Self(stages))
    }

    /// The number of a stage's nth event, counted from 0.
    pub fn seq(&self, stage: &str, nth: u64) -> Result<u64, StageError> {
        let found = self.0.iter().find(|(name, _)| name == stage);
        let (_, range) = found.ok_or(StageError::Unknown)?;
        let places = range.end() - range.start() + 1;
        if nth < places { Ok(range.start() + nth) } else { Err(StageError::Full { places }) }
    }

    /// A stage's nth event, counted from 0.
    pub fn event(
        &self,
        domain: &str,
        job_id: &str,
        stage: &str,
        nth: u64,
    ) -> Result<NewEvent, StageError> {
        Ok(NewEvent::new(domain, job_id, stage, self.seq(stage, nth)?))
    }
}

impl Default for Stages {
    /// `vision` 10–19, `rule` 20–29, `answer` 30–39, `reward` 40–49, `done` 50–59.
    fn default() -> Self {
        let names = ["vision", "rule", "answer", "reward", "done"];
        let ranges = names.into_iter().zip((10..).step_by(10));
        Self(ranges.map(|(name, first)| (name.to_owned(), first..=first + 9)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hole_13_the_eleventh_event_of_a_stage_is_an_error() {
        // Originally `get_next_seq("vision", 10)` is 20: the number of `rule`'s first event.
        let stages = Stages::default();
        assert_eq!(stages.seq("vision", 10), Err(StageError::Full { places: 10 }));
        assert_eq!(stages.seq("rule", 0), Ok(20));
        // … and a stage without a range silently shares 0 to 9 with every other one.
        assert_eq!(stages.seq("queued", 0), Err(StageError::Unknown));
        assert_eq!(stages.seq("done", 1), Ok(51));
    }

    #[test]
    fn ranges_that_meet_are_refused() {
        for wrong in [[("a", 0..=9), ("b", 9..=19)], [("a", 0..=9), ("a", 10..=19)]] {
            assert_eq!(Stages::new(wrong), Err(StageError::Range));
        }
        #[expect(clippy::reversed_empty_ranges, reason = "that is the mistake")]
        let empty = Stages::new([("a", 5..=4)]);
        assert_eq!(empty, Err(StageError::Range));
        assert_eq!(Stages::new([("a", 0..=MAX_NUMBER + 1)]), Err(StageError::Range));
    }
}
