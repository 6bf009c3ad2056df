use std::fmt;
use std::str::FromStr;

use super::{Cursor, Epoch, InvalidCursor, number};

/// The epochs of one log, each with the offset of its first entry. Most logs have one epoch.
///
/// The stored form is text, `7@1,9@42,12!50`: epoch 7 from offset 1, epoch 9 from offset 42, and
/// epoch 12 from offset 50, before which entries may have been lost.
///
/// ```
/// use hapax_core::log::{Epoch, Epochs};
/// let mut epochs = Epochs::new(Epoch(7));
/// epochs.turn(Epoch(9), 42, false);
/// epochs.turn(Epoch(12), 50, true);
/// assert_eq!(epochs.at(41), Epoch(7));
/// assert_eq!(epochs.at(42), Epoch(9));
/// assert_eq!(epochs.to_string(), "7@1,9@42,12!50");
/// assert_eq!("7@1,9@42,12!50".parse(), Ok(epochs));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epochs(Vec<EpochSpan>);

/// One epoch of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EpochSpan {
    epoch: Epoch,
    first: u64,
    /// Whether entries right before the first one may have been lost.
    lossy: bool,
}

impl Epochs {
    /// How many epochs are remembered. Readers with a cursor of an older epoch get a gap, and then
    /// the kept entries; those of forgotten epochs are shown under the oldest one remembered.
    pub const MAX: usize = 16;

    /// The epochs of a new log.
    pub fn new(epoch: Epoch) -> Self {
        Self(vec![EpochSpan { epoch, first: 1, lossy: false }])
    }

    /// Starts another epoch at this offset. It is `lossy` if acknowledged entries may have been lost;
    /// every reader that passes that place gets a gap.
    pub fn turn(&mut self, epoch: Epoch, first: u64, lossy: bool) {
        self.0.retain(|span| span.first < first);
        self.0.push(EpochSpan { epoch, first, lossy });
        if self.0.len() > Self::MAX {
            self.0.remove(0);
        }
    }

    /// The same epochs, where every change of epoch is [lossy](Epochs::turn).
    #[must_use]
    pub fn with_lossy_turns(mut self) -> Self {
        self.0.iter_mut().skip(1).for_each(|span| span.lossy = true);
        self
    }

    /// The epoch of the entry with this offset; for offset 0, that of the first entry. The oldest
    /// epoch that is remembered stands for those before it, which are forgotten.
    pub fn at(&self, offset: u64) -> Epoch {
        let began = |span: &&EpochSpan| span.first <= offset.max(1);
        self.0.iter().rev().find(began).or(self.0.first()).map_or(Epoch(0), |span| span.epoch)
    }

    /// The cursor of a reader that gets the entry with this offset next. At the beginning of an epoch
    /// it is of that epoch: such a reader was told what may have been lost there.
    pub fn before(&self, offset: u64) -> Cursor {
        let offset = offset.max(1);
        let begins = self.0.iter().find(|span| span.first == offset);
        let epoch = begins.map_or_else(|| self.at(offset - 1), |span| span.epoch);
        Cursor { epoch, offset: offset - 1 }
    }

    /// The last offset of an epoch that was followed by another one.
    pub fn end_of(&self, epoch: Epoch) -> Option<u64> {
        let mut later = self.0.iter().skip_while(|span| span.epoch != epoch).skip(1);
        later.next().map(|span| span.first - 1)
    }

    /// The current epoch, which new entries get.
    pub fn last(&self) -> Epoch {
        self.0.last().map_or(Epoch(0), |span| span.epoch)
    }

    /// The first offset of the last lossy epoch; 1 if there is none.
    pub fn last_loss(&self) -> u64 {
        self.0.iter().rev().find(|span| span.lossy).map_or(1, |span| span.first)
    }

    /// Whether entries may have been lost right before the one with this offset.
    pub fn may_have_lost_before(&self, offset: u64) -> bool {
        self.0.iter().any(|span| span.lossy && span.first == offset)
    }

    /// The first offset after this one right before which entries may have been lost.
    pub(super) fn next_loss(&self, offset: u64) -> Option<u64> {
        self.0.iter().find(|span| span.lossy && span.first > offset).map(|span| span.first)
    }
}

impl fmt::Display for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, EpochSpan { epoch, first, lossy }) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{}{}{first}", epoch.0, if *lossy { '!' } else { '@' })?;
        }
        Ok(())
    }
}

impl FromStr for Epochs {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let span = |span: &str| {
            let (epoch, first) = span.split_once(['@', '!']).ok_or(InvalidCursor)?;
            let (epoch, first) = (Epoch(number(epoch)?), number(first)?);
            Ok(EpochSpan { epoch, first: first.max(1), lossy: span.contains('!') })
        };
        text.split(',').map(span).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_of_two_failovers_at_one_offset_keep_the_second() {
        let mut epochs = Epochs::new(Epoch(1));
        epochs.turn(Epoch(2), 5, false);
        epochs.turn(Epoch(3), 5, false);
        assert_eq!(epochs.to_string(), "1@1,3@5");
        (4..40).for_each(|e| epochs.turn(Epoch(e), e * 10, false));
        assert_eq!(epochs.at(5), Epoch(24), "the oldest one remembered");
    }
}
