//! Reads rules from TOML; an error names the place, the mistake and the fix.

use std::time::Duration;

use toml::{Table, Value};

use super::{BUSY_TEXT, DEFAULT_TTL, Guard, LockRules, Rule};
use crate::{EventKind, MAX_TEXT};

const TOP: &[&str] = &["busy_text", "rule"];
const FIELDS: &[&str] = &["event", "data", "guard", "ttl", "renew"];
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(3600);
/// The default window of a throttle rule.
const WINDOW: Duration = Duration::from_secs(1);

/// A mistake in lock rules: where it is, and what is expected there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidLockRules {
    /// The text is not valid TOML.
    #[error("the rules are no TOML: {0}")]
    Syntax(String),
    /// A mistake in a field outside the rules.
    #[error("`{field}`: {fix}")]
    Top {
        /// The field.
        field: String,
        /// The expected value, for the message.
        fix: String,
    },
    /// A mistake in a field of a rule.
    #[error("rule {number}, `{field}`: {fix}")]
    Rule {
        /// The number of the rule, from 1.
        number: usize,
        /// The field.
        field: String,
        /// The expected value, for the message.
        fix: String,
    },
}

/// The name of a wrong field, and what is expected there.
type Wrong = (String, String);

fn wrong<T>(field: &str, fix: impl Into<String>) -> Result<T, Wrong> {
    Err((field.into(), fix.into()))
}

pub(super) fn rules(text: &str) -> Result<LockRules, InvalidLockRules> {
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| InvalidLockRules::Syntax(error.to_string()))?;
    let top = |(field, fix)| InvalidLockRules::Top { field, fix };
    known(&table, TOP).map_err(top)?;
    let busy_text = busy_text(&table).map_err(top)?;
    let read = |(nth, value)| {
        let place = |(field, fix)| InvalidLockRules::Rule { number: nth + 1, field, fix };
        rule(value).map_err(place)
    };
    let rules = listed(&table).map_err(top)?.iter().enumerate().map(read);
    Ok(LockRules { rules: rules.collect::<Result<_, _>>()?, default_ttl: DEFAULT_TTL, busy_text })
}

fn known(table: &Table, names: &[&str]) -> Result<(), Wrong> {
    match table.keys().find(|key| !names.contains(&&***key)) {
        Some(key) => wrong(key, format!("is not known; there are {}", names.join(", "))),
        None => Ok(()),
    }
}

fn busy_text(top: &Table) -> Result<String, Wrong> {
    let Some(value) = top.get("busy_text") else { return Ok(BUSY_TEXT.into()) };
    let text = value.as_str().unwrap_or_default();
    match text.encode_utf16().count() {
        1..=MAX_TEXT => Ok(text.into()),
        _ => wrong("busy_text", format!("a text of 1 to {MAX_TEXT} UTF-16 units is expected")),
    }
}

fn listed(top: &Table) -> Result<&[Value], Wrong> {
    match top.get("rule") {
        None => Ok(&[]),
        Some(Value::Array(rules)) => Ok(rules),
        Some(_) => wrong("rule", "begin each rule with [[rule]], in double brackets"),
    }
}

fn rule(value: &Value) -> Result<Rule, Wrong> {
    let Value::Table(table) = value else { return wrong("rule", "a table is expected: [[rule]]") };
    known(table, FIELDS)?;
    let kinds = kinds(table)?;
    let data = data(table, &kinds)?;
    let guard = guard(table)?;
    let never = kinds.iter().find(|kind| is_never_locked(**kind));
    match never.filter(|_| guard != Guard::None) {
        Some(kind) => {
            let fix = format!("{kind} is never locked; leave it out, or say guard = \"none\"");
            wrong("event", fix)
        }
        None => Ok(Rule { kinds, data, guard }),
    }
}

fn is_never_locked(kind: EventKind) -> bool {
    kind == EventKind::FOLLOW || kind == EventKind::UNFOLLOW
}

fn kinds(rule: &Table) -> Result<Vec<EventKind>, Wrong> {
    let names = texts("event", rule.get("event"))?;
    if names == ["*"] {
        return Ok(EventKind::all().filter(|kind| !is_never_locked(*kind)).collect());
    }
    let named = |name: &String| match EventKind::named(name) {
        Some(kind) => Ok(kind),
        None => {
            let all: Vec<_> = EventKind::all().map(EventKind::as_str).collect();
            let fix = format!("\"*\" alone is expected, or names of these: {}", all.join(", "));
            wrong("event", fix)
        }
    };
    names.iter().map(named).collect()
}

fn data(rule: &Table, kinds: &[EventKind]) -> Result<Vec<(String, Vec<String>)>, Wrong> {
    let fields = match rule.get("data") {
        None => return Ok(Vec::new()),
        Some(Value::Table(fields)) if !fields.is_empty() => fields,
        Some(_) => {
            return wrong("data", "fields and their values are expected: { action = \"weather\" }");
        }
    };
    if kinds.iter().any(|kind| *kind != EventKind::POSTBACK) {
        return wrong("data", "only a postback has data; say event = \"postback\", and that alone");
    }
    let one = |(name, value): (&String, &Value)| {
        Ok((name.clone(), texts(&format!("data.{name}"), Some(value))?))
    };
    fields.iter().map(one).collect()
}

/// A string, or an array of strings.
fn texts(field: &str, value: Option<&Value>) -> Result<Vec<String>, Wrong> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let read = match value {
        Some(Value::Array(values)) => values.iter().map(text).collect::<Option<Vec<_>>>(),
        Some(value) => text(value).map(|text| vec![text]),
        None => None,
    };
    match read {
        Some(texts) if !texts.is_empty() => Ok(texts),
        _ => wrong(field, "a text is expected, or a list of at least one: \"a\" or [\"a\", \"b\"]"),
    }
}

fn guard(rule: &Table) -> Result<Guard, Wrong> {
    let (ttl, renew) = (ttl(rule)?, renew(rule)?);
    match rule.get("guard").and_then(Value::as_str) {
        Some("mutex") => Ok(Guard::Mutex { ttl, renew: renew.unwrap_or(false) }),
        Some("throttle" | "none") if renew.is_some() => {
            wrong("renew", "only a mutex is renewed; leave it out")
        }
        Some("throttle") => Ok(Guard::Throttle { window: ttl.unwrap_or(WINDOW) }),
        Some("none") if ttl.is_some() => wrong("ttl", "what is not guarded has none; leave it out"),
        Some("none") => Ok(Guard::None),
        _ => wrong("guard", "\"mutex\", \"throttle\" or \"none\" is expected"),
    }
}

fn ttl(rule: &Table) -> Result<Option<Duration>, Wrong> {
    let Some(value) = rule.get("ttl") else { return Ok(None) };
    let ttl = value.as_str().and_then(|text| humantime::parse_duration(text).ok());
    match ttl.filter(|ttl| (SHORTEST..=LONGEST).contains(ttl)) {
        Some(ttl) => Ok(Some(ttl)),
        None => wrong("ttl", "a time from 1ms to 1h is expected, with its unit: \"5s\", \"500ms\""),
    }
}

fn renew(rule: &Table) -> Result<Option<bool>, Wrong> {
    match rule.get("renew") {
        None => Ok(None),
        Some(Value::Boolean(renew)) => Ok(Some(*renew)),
        Some(_) => wrong("renew", "true or false is expected"),
    }
}
