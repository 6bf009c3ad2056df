use std::collections::HashSet;
use std::fmt;

use hapax_core::{Fingerprint, canonical_json};
use http::header::{CONTENT_TYPE, HeaderName};
use http::request::Parts;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::json_cost;

/// Headers by which a service may take a request for one with another method.
pub(crate) static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

/// The part of a body that makes two requests the same. Method (also one that a header such as
/// `X-HTTP-Method-Override` names), path, query and content type always count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FingerprintOf {
    /// Every byte.
    #[default]
    Bytes,
    /// The JSON value: member order and white space do not matter. A body that is not JSON, or that
    /// repeats a member of an object, counts byte by byte.
    Json,
    /// Only the values at these JSON pointers (RFC 6901).
    Only(Vec<String>),
    /// The JSON value without the values at these JSON pointers: a timestamp, a trace id.
    Except(Vec<String>),
}

impl FingerprintOf {
    pub(crate) fn of_request(&self, parts: &Parts, body: &[u8]) -> Fingerprint {
        let content_type = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
        let canonical = self.canonical_body(body);
        let mut counted = vec![
            parts.method.as_str().as_bytes(),
            parts.uri.path().as_bytes(),
            parts.uri.query().unwrap_or_default().as_bytes(),
            content_type,
            canonical.as_deref().map_or(body, str::as_bytes),
        ];
        for name in &METHOD_OVERRIDES {
            for value in parts.headers.get_all(name) {
                counted.extend([name.as_str().as_bytes(), value.as_bytes()]);
            }
        }
        Fingerprint::of(&counted)
    }

    /// The memory that computing the fingerprint of this body takes.
    pub(crate) fn cost(&self, body: &[u8]) -> usize {
        if *self == Self::Bytes { 0 } else { json_cost(body) }
    }

    /// The text to hash instead of the body; `None` where the body's bytes count.
    fn canonical_body(&self, body: &[u8]) -> Option<String> {
        if *self == Self::Bytes {
            return None;
        }
        // Parsers differ in which of two members with one name they take: every byte counts then.
        serde_json::from_slice::<UniqueMembers>(body).ok()?;
        let mut json: Value = serde_json::from_slice(body).ok()?;
        Some(match self {
            Self::Bytes | Self::Json => canonical_json(&json),
            Self::Only(pointers) => {
                // Wrap each pointer's value in an array, so that missing and `null` differ.
                let found = |p: &String| json.pointer(p).cloned().into_iter().collect();
                canonical_json(&Value::Array(pointers.iter().map(found).collect()))
            }
            Self::Except(pointers) => {
                for pointer in pointers {
                    remove_at(&mut json, pointer);
                }
                canonical_json(&json)
            }
        })
    }
}

fn remove_at(json: &mut Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        // The empty pointer points to the whole document.
        if pointer.is_empty() {
            *json = Value::Null;
        }
        return;
    };
    match json.pointer_mut(parent) {
        Some(Value::Object(members)) => {
            members.shift_remove(&name.replace("~1", "/").replace("~0", "~"));
        }
        // Replace the item by null: removing it would shift the pointers to the items behind it.
        Some(Value::Array(_)) => {
            if let Some(item) = json.pointer_mut(pointer) {
                *item = Value::Null;
            }
        }
        _ => {}
    }
}

/// The start of the member names that serde_json gives a meaning of its own.
const RESERVED: &str = "$serde_json::private::";
const NUMBER: &str = "$serde_json::private::Number";

/// Deserializes any JSON value in which no object repeats a member or uses a reserved name.
struct UniqueMembers;

impl<'de> Deserialize<'de> for UniqueMembers {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(UniqueMembersVisitor)
    }
}

struct UniqueMembersVisitor;

macro_rules! accept_scalars {
    ($($visit:ident: $type:ty),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<UniqueMembers, E> {
            Ok(UniqueMembers)
        })+
    };
}

impl<'de> Visitor<'de> for UniqueMembersVisitor {
    type Value = UniqueMembers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<UniqueMembers, A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if !names.insert(name) {
                return Err(Error::custom("a repeated member"));
            }
            members.next_value::<UniqueMembers>()?;
        }
        // serde_json hands over a number as an object with one reserved member. In any other object
        // a reserved name means something else first than last, so that order would count.
        if names.iter().any(|n| n.starts_with(RESERVED))
            && !(names.len() == 1 && names.contains(NUMBER))
        {
            return Err(Error::custom("a member name reserved by the parser"));
        }
        Ok(UniqueMembers)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<UniqueMembers, A::Error> {
        while items.next_element::<UniqueMembers>()?.is_some() {}
        Ok(UniqueMembers)
    }

    accept_scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<UniqueMembers, E> {
        Ok(UniqueMembers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(how: &FingerprintOf, body: &str) -> Fingerprint {
        let (parts, ()) = http::Request::post("/orders?a=1").body(()).unwrap().into_parts();
        how.of_request(&parts, body.as_bytes())
    }

    #[test]
    fn fingerprint_bytes_counts_every_byte() {
        let how = FingerprintOf::Bytes;
        assert_ne!(of(&how, r#"{"a":1}"#), of(&how, r#"{"a": 1}"#));
    }

    #[test]
    fn fingerprint_json_counts_the_value() {
        let how = FingerprintOf::Json;
        assert_eq!(of(&how, r#"{"a":1,"b":2}"#), of(&how, r#"{ "b":2, "a":1 }"#));
        assert_ne!(of(&how, r#"{"a":1}"#), of(&how, r#"{"a":2}"#));
        assert_ne!(of(&how, "no json"), of(&how, "none either"));
    }

    #[test]
    fn fingerprint_pointers_select_what_counts() {
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

    #[test]
    fn fingerprint_with_a_reserved_member_counts_every_byte() {
        for reserved in ["RawValue\":2", "RawValue\":\"[1]\"", "Number\":\"5\""] {
            let first = format!(r#"{{"$serde_json::private::{reserved},"a":1}}"#);
            let last = format!(r#"{{"a":1,"$serde_json::private::{reserved}}}"#);
            for body in [first, last] {
                assert_eq!(FingerprintOf::Json.canonical_body(body.as_bytes()), None, "{body}");
            }
        }
    }

    #[test]
    fn fingerprint_finds_repeated_members_at_any_depth() {
        let is_unique = |json: &str| serde_json::from_str::<UniqueMembers>(json).is_ok();
        assert!(is_unique(r#"{"a":[1,-2,3.5e400,"x",null,true,{"a":{}}]}"#));
        assert!(!is_unique(r#"{"a":1,"a":1}"#));
        assert!(!is_unique(r#"[{"b":{"a":1,"\u0061":2}}]"#));
        assert!(!is_unique("{"));
    }
}
