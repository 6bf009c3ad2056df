use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Any JSON value in which no object has two members of one name.
pub(crate) struct Unambiguous;

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = Unambiguous;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Unambiguous, A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            if !names.insert(name) {
                return Err(A::Error::custom("two members of one name"));
            }
            members.next_value::<Unambiguous>()?;
        }
        Ok(Unambiguous)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unambiguous, A::Error> {
        while items.next_element::<Unambiguous>()?.is_some() {}
        Ok(Unambiguous)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }

    fn visit_unit<E>(self) -> Result<Unambiguous, E> {
        Ok(Unambiguous)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_unambiguous(json: &str) -> bool {
        serde_json::from_str::<Unambiguous>(json).is_ok()
    }

    #[test]
    fn two_members_of_one_name_are_found_at_any_depth() {
        assert!(is_unambiguous(r#"{"a":[1,-2,3.5e400,"x",null,true,{"a":{}}]}"#));
        assert!(!is_unambiguous(r#"{"a":1,"a":1}"#));
        assert!(!is_unambiguous(r#"[{"b":{"a":1,"\u0061":2}}]"#));
        assert!(!is_unambiguous("{"));
    }
}
