use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::{Fault, FaultyStore};
use hapax_core::document::{DocumentError, Documents, MatchCondition};
use hapax_core::{Expect, Key, Records, Tenant, Version};
use serde_json::{Value, json};

use crate::features::{faulty, secs};

fn documents() -> (FaultyStore, Documents) {
    let store = faulty();
    (store.clone(), Documents::new(Arc::new(store)))
}

/// Examples of RFC 7386, appendix A.
#[tokio::test]
async fn document_merge_patch_follows_its_rfc() {
    let (_, documents) = documents();
    for (original, patch, result) in [
        (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
        (r#"{"a":"b"}"#, r#"{"a":null}"#, r#"{}"#),
        (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
        (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
        (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
        (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
        (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
        (r#"{"a":"foo"}"#, r#"null"#, r#"null"#),
        (r#"[1,2]"#, r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
        (r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        (
            r#"{"big":12345678901234567890123,"x":1}"#,
            r#"{"x":2.50}"#,
            r#"{"big":12345678901234567890123,"x":2.50}"#,
        ),
    ] {
        let original: Value = serde_json::from_str(original).unwrap();
        let patch: Value = serde_json::from_str(patch).unwrap();
        documents.put("r", &original, &MatchCondition::Any, None).await.unwrap();
        let patched = documents.patch("r", &patch, &MatchCondition::Any, None).await.unwrap();
        assert_eq!(patched.value.to_string(), result);
        assert_eq!(documents.get_raw("r").await.unwrap().unwrap().value, result);
    }
}

#[tokio::test]
async fn document_missing_unreachable_and_corrupt_differ() {
    let (store, documents) = documents();
    assert!(documents.get::<Value>("r").await.unwrap().is_none());
    let patch = documents.patch("r", &json!({}), &MatchCondition::Any, None).await;
    assert!(matches!(patch, Err(DocumentError::Missing)));

    let key = Key::record(&Tenant::default(), "r").unwrap();
    let _ = store.put(&key, "{broken".into(), &Expect::Any, None).await.unwrap();
    assert!(matches!(documents.get::<Value>("r").await, Err(DocumentError::Corrupt(_))));
    assert!(matches!(documents.get_raw("r").await, Err(DocumentError::Corrupt(_))));
    let patch = documents.patch("r", &json!({}), &MatchCondition::Any, None).await;
    assert!(matches!(patch, Err(DocumentError::Corrupt(_))));

    store.always(Some(Fault::LostQuestion));
    assert!(matches!(documents.get::<Value>("r").await, Err(DocumentError::Store(_))));
}

#[tokio::test]
async fn document_expectations_follow_http() {
    let (_, documents) = documents();
    let no_such = || MatchCondition::from(Version::new("no-such"));
    for expect in [MatchCondition::Present, no_such()] {
        let put = documents.put("r", &1, &expect, None).await;
        assert!(matches!(put, Err(DocumentError::Conflict)));
        let patch = documents.patch("r", &json!(1), &expect, None).await;
        assert!(matches!(patch, Err(DocumentError::Conflict)));
        assert!(matches!(documents.delete("r", &expect).await, Err(DocumentError::Conflict)));
    }
    assert!(matches!(
        documents.delete("r", &MatchCondition::Any).await,
        Err(DocumentError::Missing)
    ));
    let first = documents.put("r", &1, &MatchCondition::Absent, None).await.unwrap();
    assert!(first.created);
    let absent = documents.put("r", &2, &MatchCondition::Absent, None).await;
    assert!(matches!(absent, Err(DocumentError::Conflict)));
    let list = MatchCondition::OneOf(vec![Version::new("no-such"), first.version.clone()]);
    let second = documents.put("r", &2, &list, None).await.unwrap();
    assert!(!second.created);
    assert!(matches!(documents.put("r", &3, &list, None).await, Err(DocumentError::Conflict)));
    assert!(matches!(
        documents.delete("r", &first.version.into()).await,
        Err(DocumentError::Conflict)
    ));
    documents.put("r", &3, &MatchCondition::Present, None).await.unwrap();
    documents.delete("r", &MatchCondition::Present).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn document_updates_lose_nothing_when_concurrent() {
    let (store, documents) = documents();
    documents.put("r", &0, &MatchCondition::Any, None).await.unwrap();
    store.always(Some(Fault::Stall(Duration::from_millis(3))));
    let mut tasks = Vec::new();
    for i in 0..8 {
        let documents = documents.clone();
        tasks.push(tokio::spawn(async move {
            let mut added = 0;
            while added < 10 {
                tokio::time::sleep(Duration::from_millis(i)).await;
                match documents.update("r", None, |sum: &mut u32| *sum += 1).await {
                    Ok(_) => added += 1,
                    Err(DocumentError::Contended) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(documents.get::<u32>("r").await.unwrap().unwrap().value, 80);
}

#[tokio::test(start_paused = true)]
async fn document_update_keeps_or_renews_the_ttl() {
    let (_, documents) = documents();
    documents.put("r", &0, &MatchCondition::Any, Some(secs(3600))).await.unwrap();
    tokio::time::sleep(secs(1800)).await;
    let kept = documents.update("r", None, |n: &mut u32| *n += 1).await.unwrap();
    assert_eq!(kept.expires_in, Some(secs(1800)));
    let renewed = documents.update("r", Some(secs(3600)), |n: &mut u32| *n += 1).await.unwrap();
    assert_eq!(renewed.expires_in, Some(secs(3600)));
    tokio::time::sleep(secs(3599)).await;
    assert!(documents.get::<u32>("r").await.unwrap().is_some());
    tokio::time::sleep(secs(1)).await;
    assert!(documents.get::<u32>("r").await.unwrap().is_none());
}

#[tokio::test]
async fn document_patch_beyond_the_maximum_size_is_refused() {
    let (_, documents) = documents();
    let documents = documents.max_bytes(64);
    documents.put("r", &json!({"a": "x"}), &MatchCondition::Any, None).await.unwrap();
    let grown =
        documents.patch("r", &json!({"b": "y".repeat(60)}), &MatchCondition::Any, None).await;
    assert!(matches!(grown, Err(DocumentError::TooLarge { limit: 64 })));
    let put = documents.put("r", &"y".repeat(64), &MatchCondition::Any, None).await;
    assert!(matches!(put, Err(DocumentError::TooLarge { limit: 64 })));
    assert_eq!(documents.get_raw("r").await.unwrap().unwrap().value, r#"{"a":"x"}"#);
}
