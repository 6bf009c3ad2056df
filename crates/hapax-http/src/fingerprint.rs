use hapax_core::{Fingerprint, canonical_json};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use serde_json::Value;

use crate::unambiguous::Unambiguous;

/// What makes two requests the same. Method, path, query and content type always count; this is about
/// the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FingerprintOf {
    /// Every byte.
    #[default]
    Bytes,
    /// The JSON value: member order and white space do not matter. A body that is no JSON, or has two
    /// members of one name in an object, counts byte by byte.
    Json,
    /// Only what these JSON pointers (RFC 6901) point to.
    Only(Vec<String>),
    /// The JSON value without what these JSON pointers point to: a timestamp, a trace id.
    Except(Vec<String>),
}

impl FingerprintOf {
    pub(crate) fn request(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let content_type = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
        let counted = self.body(body);
        Fingerprint::of(&[
            parts.method.as_str().as_bytes(),
            parts.uri.path().as_bytes(),
            parts.uri.query().unwrap_or_default().as_bytes(),
            content_type,
            counted.as_deref().map_or(body, str::as_bytes),
        ])
    }

    /// The text that stands for the body; `None` where its bytes do.
    fn body(&self, body: &[u8]) -> Option<String> {
        if *self == Self::Bytes {
            return None;
        }
        // Which of two members with one name counts, nobody knows: then every byte does.
        serde_json::from_slice::<Unambiguous>(body).ok()?;
        let mut json: Value = serde_json::from_slice(body).ok()?;
        Some(match self {
            Self::Bytes | Self::Json => canonical_json(&json),
            Self::Only(pointers) => {
                // A list of none or one for each: what is missing is not null.
                let found = |p: &String| json.pointer(p).cloned().into_iter().collect();
                canonical_json(&Value::Array(pointers.iter().map(found).collect()))
            }
            Self::Except(pointers) => {
                for pointer in pointers {
                    remove(&mut json, pointer);
                }
                canonical_json(&json)
            }
        })
    }
}

fn remove(json: &mut Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        // The empty pointer points to everything.
        if pointer.is_empty() {
            *json = Value::Null;
        }
        return;
    };
    match json.pointer_mut(parent) {
        Some(Value::Object(members)) => {
            members.shift_remove(&name.replace("~1", "/").replace("~0", "~"));
        }
        // Blanked rather than taken out: the places behind it must not move.
        Some(Value::Array(_)) => {
            if let Some(item) = json.pointer_mut(pointer) {
                *item = Value::Null;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(how: &FingerprintOf, body: &str) -> Fingerprint {
        let (parts, ()) = http::Request::post("/orders?a=1").body(()).unwrap().into_parts();
        how.request(&parts, body.as_bytes())
    }

    #[test]
    fn bytes_count_every_byte() {
        let how = FingerprintOf::Bytes;
        assert_ne!(of(&how, r#"{"a":1}"#), of(&how, r#"{"a": 1}"#));
    }

    #[test]
    fn json_counts_the_value() {
        let how = FingerprintOf::Json;
        assert_eq!(of(&how, r#"{"a":1,"b":2}"#), of(&how, r#"{ "b":2, "a":1 }"#));
        assert_ne!(of(&how, r#"{"a":1}"#), of(&how, r#"{"a":2}"#));
        assert_ne!(of(&how, "no json"), of(&how, "none either"));
    }

    #[test]
    fn pointers_choose_what_counts() {
        let only = FingerprintOf::Only(vec!["/order/id".into()]);
        assert_eq!(
            of(&only, r#"{"order":{"id":1},"at":5}"#),
            of(&only, r#"{"order":{"id":1},"at":6}"#)
        );
        assert_ne!(of(&only, r#"{"order":{"id":1}}"#), of(&only, r#"{"order":{"id":2}}"#));
        let except = FingerprintOf::Except(vec!["/at".into(), "/items/0".into()]);
        assert_eq!(
            of(&except, r#"{"id":1,"at":5,"items":[1,2]}"#),
            of(&except, r#"{"id":1,"at":6,"items":[9,2]}"#)
        );
        assert_ne!(
            of(&except, r#"{"id":1,"items":[1,2]}"#),
            of(&except, r#"{"id":1,"items":[1,3]}"#)
        );
    }
}
