//! The rules that decide which events are locked, and how.

mod read;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use read::InvalidLockRules;

use crate::{EventKind, LineEvent};

/// The default text for a user whose previous event is still being handled.
pub const BUSY_TEXT: &str = "⏳ 正在為您查詢天氣，請稍候...";

/// The default TTL of a lock.
const DEFAULT_TTL: Duration = Duration::from_secs(5);

/// How an event locks its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRule {
    /// The event takes no lock.
    None,
    /// One event at a time per user: the lock is held while the event is handled, for at most `ttl`
    /// unless renewed.
    Mutex {
        /// The TTL of the lock.
        ttl: Duration,
        /// Whether the lock is renewed while the event is handled.
        renew: bool,
    },
    /// One event per window and user, however short its handling is.
    Throttle {
        /// The window.
        window: Duration,
    },
}

/// Lock rules: the first rule that matches an event applies. An event without a matching rule is
/// not locked.
///
/// ```
/// use std::time::Duration;
/// use hapax_line::{LineEvent, LockRule, LockRules};
///
/// let rules = LockRules::parse(r#"
///     [[rule]]
///     event = "postback"
///     data = { action = "weather", type = ["home", "office"] }
///     guard = "mutex"
///     ttl = "5s"
/// "#)?;
/// let tap = |data: &str| {
///     let raw = format!(r#"{{"type":"postback","postback":{{"data":"{data}"}}}}"#);
///     rules.rule_for(&LineEvent::parse(&"U0".into(), &raw).unwrap())
/// };
/// let locked = LockRule::Mutex { ttl: Duration::from_secs(5), renew: false };
/// assert_eq!(tap("action=weather&type=home"), locked);
/// assert_eq!(tap("action=weather&type=current"), LockRule::None);
/// # Ok::<_, hapax_line::InvalidLockRules>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRules {
    rules: Vec<Rule>,
    default_ttl: Duration,
    busy_text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    kinds: Vec<EventKind>,
    /// Postback fields, and the values that each may have.
    data: Vec<(String, Vec<String>)>,
    guard: Guard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    None,
    Mutex { ttl: Option<Duration>, renew: bool },
    Throttle { window: Duration },
}

impl Default for LockRules {
    /// Locks text, location and postback events with a TTL of 5 s.
    fn default() -> Self {
        Self::locking(DEFAULT_TTL)
    }
}

impl LockRules {
    /// Locks text, location and postback events with this TTL.
    pub fn locking(ttl: Duration) -> Self {
        let kinds = vec![EventKind::TEXT, EventKind::LOCATION, EventKind::POSTBACK];
        let guard = Guard::Mutex { ttl: None, renew: false };
        let rules = vec![Rule { kinds, data: Vec::new(), guard }];
        Self { rules, default_ttl: ttl, busy_text: BUSY_TEXT.into() }
    }

    /// Locks nothing.
    pub fn unlocked() -> Self {
        Self { rules: Vec::new(), ..Self::default() }
    }

    /// Parses rules in TOML; `docs/rules` describes the format.
    ///
    /// ```
    /// let error = hapax_line::LockRules::parse("[[rule]]\nevent = \"follow\"\nguard = \"mutex\"");
    /// assert_eq!(
    ///     error.unwrap_err().to_string(),
    ///     "rule 1, `event`: follow is never locked; leave it out, or say guard = \"none\"",
    /// );
    /// ```
    pub fn parse(text: &str) -> Result<Self, InvalidLockRules> {
        read::rules(text)
    }

    /// Sets the TTL of every mutex rule that has none of its own; 5 s by default.
    #[must_use]
    pub fn with_default_ttl(self, ttl: Duration) -> Self {
        Self { default_ttl: ttl, ..self }
    }

    /// Sets the text for a user who has to wait.
    #[must_use]
    pub fn with_busy_text(self, text: impl Into<String>) -> Self {
        Self { busy_text: text.into(), ..self }
    }

    /// The rule for this event.
    pub fn rule_for(&self, event: &LineEvent) -> LockRule {
        let matches = |rule: &&Rule| rule.matches(event);
        match self.rules.iter().find(matches).map_or(Guard::None, |rule| rule.guard) {
            Guard::None => LockRule::None,
            Guard::Mutex { ttl, renew } => {
                LockRule::Mutex { ttl: ttl.unwrap_or(self.default_ttl), renew }
            }
            Guard::Throttle { window } => LockRule::Throttle { window },
        }
    }

    /// The text for a user who has to wait.
    pub fn busy_text(&self) -> &str {
        &self.busy_text
    }
}

impl Rule {
    fn matches(&self, event: &LineEvent) -> bool {
        let has = |(name, values): &(String, Vec<String>)| {
            event.postback_field(name).is_some_and(|value| values.contains(&value))
        };
        self.kinds.contains(&event.kind()) && self.data.iter().all(has)
    }
}
