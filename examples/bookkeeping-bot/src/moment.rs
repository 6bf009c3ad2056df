//! The time at which a message was sent, in the user's time zone.

use std::fmt;
use std::sync::Arc;

use hapax::{Clock, SystemClock, Timestamp};
use time::{OffsetDateTime, UtcOffset};

/// A moment in the user's time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(OffsetDateTime);

impl Moment {
    /// `YYYY-MM-DD`.
    pub fn date(self) -> String {
        let (year, month, day) = self.0.to_calendar_date();
        format!("{year:04}-{:02}-{day:02}", u8::from(month))
    }

    /// `HH:MM`.
    pub fn time(self) -> String {
        let (hour, minute, _) = self.0.to_hms();
        format!("{hour:02}:{minute:02}")
    }

    /// `YYYYMMDD-HHMMSS`. Not unique: it is a label for people; versions and rows identify entries.
    pub fn transaction_id(self) -> String {
        let (year, month, day) = self.0.to_calendar_date();
        let (hour, minute, second) = self.0.to_hms();
        format!("{year:04}{:02}{day:02}-{hour:02}{minute:02}{second:02}", u8::from(month))
    }
}

/// A clock, and a time zone with a fixed offset (no daylight saving time).
#[derive(Clone)]
pub struct LocalTime {
    clock: Arc<dyn Clock>,
    offset: Offset,
}

impl Default for LocalTime {
    /// The system clock, in Taipei's time zone.
    fn default() -> Self {
        Self::new(Arc::new(SystemClock), Offset::default())
    }
}

impl LocalTime {
    /// A clock with this offset from UTC.
    pub fn new(clock: Arc<dyn Clock>, offset: Offset) -> Self {
        Self { clock, offset }
    }

    /// The current time, in milliseconds.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The time at which a message was sent, according to LINE, so that a message that is handled
    /// late or repeatedly is booked on its own day; but never in the future.
    pub fn sent(&self, by_line: Option<u64>) -> Moment {
        let now = self.clock.now().0;
        let seconds = by_line.unwrap_or(now).min(now) / 1000;
        let utc =
            i64::try_from(seconds).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
        Moment(utc.unwrap_or(OffsetDateTime::UNIX_EPOCH).to_offset(self.offset.0))
    }
}

/// The offset of a time zone from UTC: `+08:00`.
///
/// ```
/// use bookkeeping_bot::moment::Offset;
/// assert_eq!("+08:00".parse::<Offset>()?, Offset::default());
/// assert!("8".parse::<Offset>().is_err());
/// # Ok::<_, bookkeeping_bot::moment::InvalidOffset>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset(UtcOffset);

/// The text is no [`Offset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an offset such as +08:00 is expected")]
pub struct InvalidOffset;

impl Default for Offset {
    /// Taipei's offset, `+08:00`.
    fn default() -> Self {
        Self(UtcOffset::from_hms(8, 0, 0).expect("it is an offset"))
    }
}

impl std::str::FromStr for Offset {
    type Err = InvalidOffset;

    fn from_str(text: &str) -> Result<Self, InvalidOffset> {
        let (sign, rest) = match text.split_at_checked(1) {
            Some(("+", rest)) => (1, rest),
            Some(("-", rest)) => (-1, rest),
            _ => return Err(InvalidOffset),
        };
        let (hours, minutes) = rest.split_once(':').ok_or(InvalidOffset)?;
        let part = |text: &str, below: i8| {
            let shaped = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<i8>().ok().filter(|n| shaped && *n < below).ok_or(InvalidOffset)
        };
        let (hours, minutes) = (part(hours, 24)?, part(minutes, 60)?);
        UtcOffset::from_hms(sign * hours, sign * minutes, 0).map(Self).map_err(|_| InvalidOffset)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hours, minutes, _) = self.0.as_hms();
        let sign = if self.0.is_negative() { '-' } else { '+' };
        write!(f, "{sign}{:02}:{:02}", hours.abs(), minutes.abs())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hapax::ManualClock;

    use super::*;

    #[test]
    fn a_message_is_of_the_day_on_which_it_was_sent_in_taipei() {
        let clock = Arc::new(ManualClock::default());
        let time = LocalTime::new(clock.clone(), Offset::default());
        // The clock starts at 2001-09-09T01:46:40Z.
        assert_eq!(time.sent(None).transaction_id(), "20010909-094640");
        clock.advance(Duration::from_secs(15 * 3600));
        let late = time.sent(None);
        assert_eq!((late.date().as_str(), late.time().as_str()), ("2001-09-10", "00:46"));
        assert_eq!(time.sent(Some(1_000_000_000_000)).date(), "2001-09-09", "handled late");
        assert_eq!(time.sent(Some(u64::MAX)), late, "never in the future");
    }

    #[test]
    fn offsets_are_read_strictly_and_shown_as_they_are_read() {
        for text in ["+08:00", "-03:30", "+00:00", "+14:00"] {
            assert_eq!(text.parse::<Offset>().unwrap().to_string(), text);
        }
        for text in ["", "8", "+8:00", "+08", "+08:60", "+99:00", "08:00", "+0a:00", "＋08:00"] {
            assert_eq!(text.parse::<Offset>(), Err(InvalidOffset), "{text}");
        }
    }
}
