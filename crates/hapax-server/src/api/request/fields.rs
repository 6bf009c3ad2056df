//! The fields of a JSON object, taken one by one; a field that remains at the end is refused.

use std::ops::RangeInclusive;
use std::time::Duration;

use hapax::Token;
use serde_json::{Map, Value};

use super::strict_json;
use crate::problem::Problem;

/// How long a lock or a lease may last, in milliseconds.
pub(crate) const LEASE: RangeInclusive<u64> = 1..=3_600_000;
/// How long a request may wait, in milliseconds.
pub(crate) const WAIT: RangeInclusive<u64> = 0..=60_000;
/// How long a response, a message or a record may be kept, in milliseconds.
pub(crate) const RETENTION: RangeInclusive<u64> = 1..=366 * 86_400_000;

/// The fields of a JSON object that were not taken yet.
pub(crate) struct JsonFields(Map<String, Value>);

impl JsonFields {
    /// Parses a body; an empty one has no fields.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Problem> {
        if body.is_empty() {
            return Ok(Self(Map::new()));
        }
        strict_json::check(body).map_err(Problem::invalid)?;
        let value = serde_json::from_slice(body).unwrap_or_default();
        Self::from_value(value, "the body must be a JSON object")
    }

    /// The fields of a value that was checked before; `otherwise` is the error for a non-object.
    pub(crate) fn from_value(value: Value, otherwise: &'static str) -> Result<Self, Problem> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(Problem::invalid(otherwise)),
        }
    }

    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name)
    }

    fn take<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let wrong = || Problem::invalid(format!("field `{name}` takes {expected}"));
        self.value(name).map(|value| read(value).ok_or_else(wrong)).transpose()
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        self.take(name, "true or false", |value| value.as_bool())
    }

    /// Takes a duration in whole milliseconds.
    pub(crate) fn millis(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Duration>, Problem> {
        Ok(self.number(name, range)?.map(Duration::from_millis))
    }

    pub(crate) fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Problem> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.take(name, &expected, |value| value.as_u64().filter(|number| range.contains(number)))
    }

    /// Takes a string of any length.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        self.take(name, "a text", |value| match value {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// Takes a short string without control characters, which some stores cannot keep.
    pub(crate) fn short_text(
        &mut self,
        name: &str,
        bytes: RangeInclusive<usize>,
    ) -> Result<Option<String>, Problem> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        if bytes.contains(&text.len()) && !text.chars().any(char::is_control) {
            return Ok(Some(text));
        }
        Err(Problem::invalid(format!(
            "field `{name}` takes {} to {} bytes without control characters",
            bytes.start(),
            bytes.end()
        )))
    }

    /// Takes the required token of a lock, command or message.
    pub(crate) fn token(&mut self) -> Result<Token, Problem> {
        let token = required("token", self.short_text("token", 1..=Token::MAX)?)?;
        Ok(Token::presented(&token))
    }

    /// Takes the label of an owner, which operators see beside the claim.
    pub(crate) fn label(&mut self) -> Result<Option<String>, Problem> {
        let Some(label) = self.text("label")? else { return Ok(None) };
        match Token::is_label(&label) {
            true => Ok(Some(label)),
            false => Err(Problem::invalid(format!(
                "field `label` takes 1 to {} bytes of printable ASCII",
                Token::MAX_LABEL
            ))),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Problem> {
        self.take(name, "an object", |value| match value {
            Value::Object(members) => Some(members),
            _ => None,
        })
    }

    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(Problem::invalid(format!("unknown field {}", quote_name(name)))),
        }
    }
}

/// A name that the client chose, shortened and without control characters, for an error text.
pub(crate) fn quote_name(name: &str) -> String {
    let short: String = name.chars().take(64).filter(|c| !c.is_control()).collect();
    format!("`{short}`")
}

pub(crate) fn required<T>(name: &str, value: Option<T>) -> Result<T, Problem> {
    value.ok_or_else(|| Problem::invalid(format!("field `{name}` is missing")))
}
