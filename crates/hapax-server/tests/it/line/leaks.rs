//! Searches for personal data: every user id, text and secret of these tests has a mark.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

/// Ids, texts (also as JSON may escape them), lock keys, secrets.
const MARKS: &[&str] = &[
    "Uf00d",
    "Cf00d",
    "Rf00d",
    // A UUID cannot contain this mark: it has hexadecimal digits between its hyphens.
    "-food-",
    "🥚",
    "\\ud83e\\udd5a",
    "臺北",
    "台北",
    "processing:user:",
];

/// The reply tokens that were sent.
#[derive(Clone, Default)]
pub(crate) struct Tokens(Arc<Mutex<BTreeSet<String>>>);

impl Tokens {
    pub(crate) fn note(&self, events: &[Value]) {
        let tokens = events.iter().filter_map(|event| event["replyToken"].as_str());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(tokens.filter(|token| !token.is_empty()).map(str::to_owned));
    }
}

/// Every leak in a text, with the line around it.
pub(crate) fn found(text: &str, tokens: &Tokens) -> Vec<String> {
    let tokens = tokens.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let marks = || MARKS.iter().copied().chain(tokens.iter().map(String::as_str));
    let leaks = |line: &&str| marks().any(|mark| line.contains(mark));
    text.lines().filter(leaks).map(str::to_owned).collect()
}

pub(crate) fn check(text: &str, tokens: &Tokens) {
    let found = found(text, tokens);
    assert!(found.is_empty(), "{} lines say what nobody may see: {found:#?}", found.len());
}

#[test]
fn leak_search_finds_planted_secrets() {
    let tokens = Tokens::default();
    tokens.note(&[serde_json::json!({ "replyToken": "nHuyWiB7yP5Zw52FIkcQobQuGDXCTA" })]);
    let leaky =
        ["user Uf00d17", r#"{"text":"\ud83e\udd5a"}"#, "token nHuyWiB7yP5Zw52FIkcQobQuGDXCTA"];
    for line in leaky {
        assert_eq!(found(line, &tokens), [line]);
    }
    assert!(found("handled one, id 0f00d1e", &tokens).is_empty());
}
