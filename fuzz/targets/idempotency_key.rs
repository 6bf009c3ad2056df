//! Any bytes as `Idempotency-Key`: a key of printable ASCII, the same one quoted, or an error.
#![no_main]

use hapax_http::parse_key;
use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;

fn parse(value: &[u8]) -> Option<String> {
    let mut headers = HeaderMap::new();
    headers.insert("idempotency-key", HeaderValue::from_bytes(value).ok()?);
    parse_key(&headers).ok().map(|key| key.expect("there is a header"))
}

fuzz_target!(|value: &[u8]| {
    let Some(key) = parse(value) else { return };
    assert!((1..=255).contains(&key.len()));
    assert!(key.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
    let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
    assert_eq!(parse(quoted.as_bytes()).as_deref(), Some(&*key));
    if !key.starts_with('"') {
        assert_eq!(parse(key.as_bytes()).as_deref(), Some(&*key));
    }
});
