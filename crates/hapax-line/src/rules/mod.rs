//! Which events are locked, and how.

mod read;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use read::InvalidRules;

use crate::{Event, Kind};

/// What is said to somebody whose event is still being handled, unless the rules say otherwise.
pub const BUSY_TEXT: &str = "⏳ 正在為您查詢天氣，請稍候...";

/// How long a lock is held at most, unless something else is said.
const TTL: Duration = Duration::from_secs(5);

/// How an event's user is kept from causing two at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarding {
    /// Not at all.
    None,
    /// One at a time: held while the event is handled, at most `ttl` unless it is renewed.
    Mutex {
        /// How long it is held without renewal.
        ttl: Duration,
        /// Whether it is renewed while the event is handled.
        renew: bool,
    },
    /// One in each window, however short the work is.
    Throttle {
        /// The window.
        window: Duration,
    },
}

/// Rules: the first that fits decides, and what no rule names is not locked.
///
/// ```
/// use std::time::Duration;
/// use hapax_line::{Event, Guarding, Rules};
///
/// let rules = Rules::parse(r#"
///     [[rule]]
///     event = "postback"
///     data = { action = "weather", type = ["home", "office"] }
///     guard = "mutex"
///     ttl = "5s"
/// "#)?;
/// let tap = |data: &str| {
///     let raw = format!(r#"{{"type":"postback","postback":{{"data":"{data}"}}}}"#);
///     rules.guarding(&Event::parse(&"U0".into(), &raw).unwrap())
/// };
/// let locked = Guarding::Mutex { ttl: Duration::from_secs(5), renew: false };
/// assert_eq!(tap("action=weather&type=home"), locked);
/// assert_eq!(tap("action=weather&type=current"), Guarding::None);
/// # Ok::<_, hapax_line::InvalidRules>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    default_ttl: Duration,
    busy_text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    kinds: Vec<Kind>,
    /// Fields of a postback, and the values that each may have.
    data: Vec<(String, Vec<String>)>,
    guard: Guard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    None,
    Mutex { ttl: Option<Duration>, renew: bool },
    Throttle { window: Duration },
}

impl Default for Rules {
    /// Text, location and postback are locked for 5 s.
    fn default() -> Self {
        Self::locking(TTL)
    }
}

impl Rules {
    /// Text, location and postback are locked, for so long.
    pub fn locking(ttl: Duration) -> Self {
        let kinds = vec![Kind::TEXT, Kind::LOCATION, Kind::POSTBACK];
        let guard = Guard::Mutex { ttl: None, renew: false };
        let rules = vec![Rule { kinds, data: Vec::new(), guard }];
        Self { rules, default_ttl: ttl, busy_text: BUSY_TEXT.into() }
    }

    /// Nothing is locked.
    pub fn unlocked() -> Self {
        Self { rules: Vec::new(), ..Self::default() }
    }

    /// Rules in TOML; what they may say is in `docs/rules`.
    ///
    /// ```
    /// let error = hapax_line::Rules::parse("[[rule]]\nevent = \"follow\"\nguard = \"mutex\"");
    /// assert_eq!(
    ///     error.unwrap_err().to_string(),
    ///     "rule 1, `event`: follow is never locked; leave it out, or say guard = \"none\"",
    /// );
    /// ```
    pub fn parse(text: &str) -> Result<Self, InvalidRules> {
        read::rules(text)
    }

    /// The same rules, with this time for every mutex that says none itself (5 s otherwise).
    #[must_use]
    pub fn with_default_ttl(self, ttl: Duration) -> Self {
        Self { default_ttl: ttl, ..self }
    }

    /// The same rules, with this text for those who have to wait.
    #[must_use]
    pub fn with_busy_text(self, text: impl Into<String>) -> Self {
        Self { busy_text: text.into(), ..self }
    }

    /// How this event is guarded.
    pub fn guarding(&self, event: &Event) -> Guarding {
        let fits = |rule: &&Rule| rule.fits(event);
        match self.rules.iter().find(fits).map_or(Guard::None, |rule| rule.guard) {
            Guard::None => Guarding::None,
            Guard::Mutex { ttl, renew } => {
                Guarding::Mutex { ttl: ttl.unwrap_or(self.default_ttl), renew }
            }
            Guard::Throttle { window } => Guarding::Throttle { window },
        }
    }

    /// What is said where the lock is held.
    pub fn busy_text(&self) -> &str {
        &self.busy_text
    }
}

impl Rule {
    fn fits(&self, event: &Event) -> bool {
        let has = |(name, values): &(String, Vec<String>)| {
            event.postback_field(name).is_some_and(|value| values.contains(&value))
        };
        self.kinds.contains(&event.kind()) && self.data.iter().all(has)
    }
}
