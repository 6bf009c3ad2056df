//! Properties of any key, any JSON and any response.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::command;
use hapax_http::{FingerprintOf, IdempotencyConfig, KeyedRequest, capture, parse_key, replay};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use proptest::prelude::*;
use serde_json::{Map, Value};

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig::with_cases(hapax_conformance::scale(count))
}

fn with_key(value: &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert("idempotency-key", HeaderValue::from_bytes(value).ok()?);
    Some(headers)
}

fn quoted(key: &str) -> String {
    format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn parse_key_accepts_or_refuses_any_bytes(bytes: Vec<u8>) {
        if let Some(headers) = with_key(&bytes)
            && let Ok(key) = parse_key(&headers)
        {
            let key = key.expect("there is a header");
            prop_assert!((1..=255).contains(&key.len()));
            prop_assert!(key.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
        }
    }

    #[test]
    fn parse_key_quoted_equals_bare(key in "[!#-~][!-~]{0,254}") {
        let bare = parse_key(&with_key(key.as_bytes()).unwrap()).unwrap();
        prop_assert_eq!(bare.as_deref(), Some(&*key));
        prop_assert_eq!(parse_key(&with_key(quoted(&key).as_bytes()).unwrap()).unwrap(), bare);
    }

    #[test]
    fn parse_key_error_never_contains_the_key(key in "[a-z]{256,300}") {
        let error = parse_key(&with_key(key.as_bytes()).unwrap()).unwrap_err();
        prop_assert!(!error.to_string().contains(&key));
    }
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((".{0,4}", inner), 0..4)
                .prop_map(|members| members.into_iter().collect::<Map<_, _>>().into()),
        ]
    })
}

/// The same value with its members in the opposite order.
fn reversed(json: &Value) -> Value {
    match json {
        Value::Object(members) => members
            .iter()
            .rev()
            .map(|(n, v)| (n.clone(), reversed(v)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(reversed).collect::<Vec<_>>().into(),
        scalar => scalar.clone(),
    }
}

fn fingerprint(how: &FingerprintOf, body: &str) -> String {
    let config = IdempotencyConfig::new().with_fingerprint(how.clone());
    let request = Request::post("/orders").header("idempotency-key", "k").body(()).unwrap();
    let keyed =
        KeyedRequest::parse(&config, &request.into_parts().0, body.as_bytes()).unwrap().unwrap();
    keyed.claim().fingerprint.as_ref().unwrap().as_str().to_owned()
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn fingerprint_json_ignores_order_and_white_space(json in json()) {
        let plain = fingerprint(&FingerprintOf::Json, &json.to_string());
        let pretty = serde_json::to_string_pretty(&reversed(&json)).unwrap();
        prop_assert_eq!(fingerprint(&FingerprintOf::Json, &pretty), plain);
    }

    #[test]
    fn fingerprint_differs_for_another_value(one in json(), other in json()) {
        let (a, b) = (one.to_string(), other.to_string());
        let same = fingerprint(&FingerprintOf::Json, &a) == fingerprint(&FingerprintOf::Json, &b);
        prop_assert_eq!(same, one == other);
    }

    #[test]
    fn fingerprint_except_ignores_only_its_pointers(one in json(), other in json()) {
        let body = |id: &Value, at: &Value| serde_json::json!({"at": at, "id": id}).to_string();
        let except = FingerprintOf::Except(vec!["/at".into()]);
        let only = FingerprintOf::Only(vec!["/id".into()]);
        for how in [except, only] {
            let print = fingerprint(&how, &body(&one, &one));
            prop_assert_eq!(&fingerprint(&how, &body(&one, &other)), &print);
            prop_assert_eq!(fingerprint(&how, &body(&other, &one)) == print, one == other);
        }
    }

    #[test]
    fn fingerprint_exists_for_any_body(body: String, pointers: Vec<String>) {
        for how in [FingerprintOf::Json, FingerprintOf::Only(pointers.clone()), FingerprintOf::Except(pointers)] {
            fingerprint(&how, &body);
        }
    }
}

prop_compose! {
    fn header()(name in "x-[a-z]{1,8}", value in prop::collection::vec(0x20_u8..=0x7e, 0..20))
        -> (HeaderName, HeaderValue)
    {
        (name.parse().unwrap(), HeaderValue::from_bytes(&value).unwrap())
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn replay_equals_the_captured_response(
        status in 200_u16..600,
        headers in prop::collection::vec(header(), 0..8),
        body: Vec<u8>,
    ) {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response.headers_mut().extend(headers);
        for never in ["set-cookie", "date", "connection", "content-length"] {
            response.headers_mut().insert(never, "1".parse().unwrap());
        }
        let (parts, ()) = response.into_parts();
        let stored = capture(&parts, Bytes::from(body.clone())).encode();
        let stored = command::StoredResponse::decode(stored).unwrap();
        let (mut again, whole) = replay(&stored, Duration::from_secs(60)).into_parts();
        prop_assert_eq!(again.status, parts.status);
        prop_assert_eq!(whole.bytes(), &body);
        again.headers.remove("idempotent-replayed").unwrap();
        again.headers.remove("idempotency-expires").unwrap();
        let mut expected = parts.headers.clone();
        for never in ["set-cookie", "date", "connection", "content-length"] {
            expected.remove(never);
        }
        prop_assert_eq!(again.headers, expected);
    }

    #[test]
    fn replay_of_any_value_is_a_response_or_a_problem(bytes: Vec<u8>, expires_in: Duration) {
        if let Ok(stored) = command::StoredResponse::decode(bytes.into()) {
            replay(&stored, expires_in);
        }
    }
}
