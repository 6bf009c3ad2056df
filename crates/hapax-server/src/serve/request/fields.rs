//! The fields of a JSON object, taken one by one; a field that remains at the end is refused.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value};

use super::strict_json;
use crate::serve::problem::Problem;

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

    /// Takes a field of any type.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name)
    }

    /// Takes a boolean.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.0.shift_remove(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => Err(Problem::invalid(format!("field `{name}` takes true or false"))),
        }
    }

    /// Takes a duration in whole milliseconds.
    pub(crate) fn millis(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Duration>, Problem> {
        Ok(self.number(name, range)?.map(Duration::from_millis))
    }

    /// Takes a whole number.
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

    /// Takes a string of any length.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.0.shift_remove(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Problem::invalid(format!("field `{name}` takes a text"))),
        }
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

    /// Takes an object.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Problem> {
        match self.0.shift_remove(name) {
            None => Ok(None),
            Some(Value::Object(members)) => Ok(Some(members)),
            Some(_) => Err(Problem::invalid(format!("field `{name}` takes an object"))),
        }
    }

    /// Refuses a field that was not taken.
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

/// Refuses a missing field.
pub(crate) fn required<T>(name: &str, value: Option<T>) -> Result<T, Problem> {
    value.ok_or_else(|| Problem::invalid(format!("field `{name}` is missing")))
}
