//! Any bytes as a JSON body: its canonical text is its own, and order and white space do not matter.
#![no_main]

use hapax_core::canonical_json;
use hapax_http::{FingerprintOf, KeyedRequest, IdempotencyConfig};
use http::Request;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

fn fingerprint(how: FingerprintOf, body: &[u8]) -> String {
    let config = IdempotencyConfig::new().with_fingerprint(how);
    let request = Request::post("/").header("idempotency-key", "k").body(()).unwrap();
    let keyed = KeyedRequest::parse(&config, &request.into_parts().0, body).unwrap().unwrap();
    keyed.claim().fingerprint.as_ref().unwrap().as_str().to_owned()
}

/// The same value with its members in the opposite order.
fn reversed(json: &Value) -> Value {
    match json {
        Value::Object(members) => {
            members.iter().rev().map(|(n, v)| (n.clone(), reversed(v))).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(reversed).collect::<Vec<_>>().into(),
        scalar => scalar.clone(),
    }
}

/// True if a member has one of serde_json's own names: it means something else first than last.
/// A fingerprint takes such a body byte by byte.
fn has_reserved_name(json: &Value) -> bool {
    match json {
        Value::Object(members) => members
            .iter()
            .any(|(name, v)| name.starts_with("$serde_json::private::") || has_reserved_name(v)),
        Value::Array(items) => items.iter().any(has_reserved_name),
        _ => false,
    }
}

fuzz_target!(|body: &[u8]| {
    // The body chooses its own pointer, too.
    let pointer = String::from_utf8_lossy(&body[..body.len().min(16)]).into_owned();
    fingerprint(FingerprintOf::Only(vec![pointer.clone()]), body);
    fingerprint(FingerprintOf::Except(vec![pointer]), body);
    fingerprint(FingerprintOf::Json, body);
    let Ok(json) = serde_json::from_slice::<Value>(body) else { return };
    if has_reserved_name(&json) {
        return;
    }
    let text = canonical_json(&json);
    assert_eq!(canonical_json(&reversed(&json)), text);
    let parsed: Value = serde_json::from_str(&text).expect("canonical JSON is JSON");
    assert_eq!(canonical_json(&parsed), text);
    assert_eq!(
        fingerprint(FingerprintOf::Json, text.as_bytes()),
        fingerprint(FingerprintOf::Json, serde_json::to_string_pretty(&json).unwrap().as_bytes()),
    );
});
