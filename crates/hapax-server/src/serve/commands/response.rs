//! The answer of a command, read from a call and shown in one.

use std::ops::RangeInclusive;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hapax::command::Response;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use super::shapes::ShownResponse;
use crate::serve::fields::{Fields, required};
use crate::serve::problem::Problem;

/// The most headers of one answer, repeated ones counted each.
const MOST_HEADERS: usize = 256;

/// Reads `status`, `headers`, and `body` or `body_base64`.
pub(in crate::serve) fn read(
    fields: &mut Fields,
    statuses: RangeInclusive<u64>,
) -> Result<Response, Problem> {
    let status = required("status", fields.number("status", statuses)?)?;
    let headers = fields.object("headers")?.map_or(Ok(Vec::new()), headers)?;
    let body = match (fields.text("body")?, fields.text("body_base64")?) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("fields `body` and `body_base64` cannot both be there"));
        }
        (Some(text), None) => text.into(),
        (None, Some(text)) => match BASE64_STANDARD.decode(text) {
            Ok(bytes) => bytes.into(),
            Err(_) => return Err(Problem::invalid("field `body_base64` takes padded base64")),
        },
        (None, None) => Bytes::new(),
    };
    let status = u16::try_from(status).expect("at most 599");
    Ok(Response { status, headers, body })
}

fn headers(given: Map<String, Value>) -> Result<Vec<(String, Bytes)>, Problem> {
    let wrong = |what| Problem::invalid(format!("field `headers` {what}"));
    let mut headers: Vec<(String, Bytes)> = Vec::new();
    let mut names: Vec<HeaderName> = Vec::new();
    for (name, value) in given {
        let parsed: HeaderName = name.parse().map_err(|_| wrong("has a name that is none"))?;
        if names.contains(&parsed) {
            return Err(wrong("has a name twice; repeated headers are an array"));
        }
        names.push(parsed);
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            let Value::String(value) = value else {
                return Err(wrong("takes texts and arrays of texts"));
            };
            if HeaderValue::from_str(&value).is_err() {
                return Err(wrong("has a value with control characters"));
            }
            headers.push((name.clone(), value.into()));
        }
        if headers.len() > MOST_HEADERS || names.len() > MOST_HEADERS {
            return Err(wrong(&format!("takes at most {MOST_HEADERS} headers")));
        }
    }
    Ok(headers)
}

/// As it goes out.
pub(super) fn shown(response: &Response) -> ShownResponse {
    let mut headers = Map::new();
    for (name, value) in &response.headers {
        // Values come in as text; those of other writers may be any bytes.
        let value = Value::String(String::from_utf8_lossy(value).into_owned());
        match headers.get_mut(name) {
            None => {
                headers.insert(name.clone(), value);
            }
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    let text = std::str::from_utf8(&response.body).ok().map(str::to_owned);
    let body_base64 = text.is_none().then(|| BASE64_STANDARD.encode(&response.body));
    ShownResponse { status: response.status, headers, body: text, body_base64 }
}
