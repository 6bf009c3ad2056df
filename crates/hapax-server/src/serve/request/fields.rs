//! The fields of a JSON object, taken one by one; whatever is left at the end is a mistake.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};

use super::strict_json;
use crate::serve::problem::Problem;

/// The fields that are still to be taken.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body; an empty one has no fields.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Problem> {
        if body.is_empty() {
            return Ok(Self(Map::new()));
        }
        strict_json::check(body).map_err(Problem::invalid)?;
        let value = serde_json::from_slice(body).unwrap_or_default();
        Self::of(value, "the body must be a JSON object")
    }

    /// Those of a value that was checked before.
    pub(crate) fn of(value: Value, otherwise: &'static str) -> Result<Self, Problem> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(Problem::invalid(otherwise)),
        }
    }

    /// Whatever it is.
    pub(crate) fn any(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name)
    }

    /// True or false.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.0.shift_remove(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(Problem::invalid(format!("field `{name}` takes true or false"))),
        }
    }

    /// A duration in whole milliseconds.
    pub(crate) fn millis(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Duration>, Problem> {
        Ok(self.number(name, range)?.map(Duration::from_millis))
    }

    /// A whole number.
    pub(crate) fn number(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Problem> {
        let Some(value) = self.0.shift_remove(name) else { return Ok(None) };
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(Problem::invalid(format!(
                "field `{name}` takes a whole number from {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    /// A text of any length.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.0.shift_remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Problem::invalid(format!("field `{name}` takes a text"))),
        }
    }

    /// A short text without control characters, which not every store can keep.
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

    /// An object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Problem> {
        match self.0.shift_remove(name) {
            None => Ok(None),
            Some(Value::Object(members)) => Ok(Some(members)),
            Some(_) => Err(Problem::invalid(format!("field `{name}` takes an object"))),
        }
    }

    /// Refuses what nobody took.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(Problem::invalid(format!("unknown field {}", shown(name)))),
        }
    }
}

/// A name that a caller made up, short enough and harmless enough to be repeated.
pub(crate) fn shown(name: &str) -> String {
    let short: String = name.chars().take(64).filter(|c| !c.is_control()).collect();
    format!("`{short}`")
}

/// Refuses a missing field.
pub(crate) fn required<T>(name: &str, value: Option<T>) -> Result<T, Problem> {
    value.ok_or_else(|| Problem::invalid(format!("field `{name}` is missing")))
}
