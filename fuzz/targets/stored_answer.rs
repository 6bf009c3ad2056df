//! Any bytes as a stored answer: an error, or an answer that encodes to the same bytes and can be
//! replayed without breaking HTTP.
#![no_main]

use std::time::Duration;

use bytes::Bytes;
use hapax_core::command::StoredResponse;
use hapax_http::replay;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|stored: &[u8]| {
    let Ok(answer) = StoredResponse::decode(Bytes::copy_from_slice(stored)) else { return };
    assert_eq!(answer.encode(), stored);
    let response = replay(&answer, Duration::from_secs(stored.len() as u64));
    assert!(!response.status().is_informational());
    for never in ["set-cookie", "transfer-encoding", "content-length", "connection"] {
        assert!(!response.headers().contains_key(never));
    }
});
