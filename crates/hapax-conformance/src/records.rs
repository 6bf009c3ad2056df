//! The laws of `Records`.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Deleted, Expect, Key, Put, Record, Version};

use crate::context::{LONG, LawContext, SHORT, concurrently};
use crate::suite::laws;

laws![
    key record;
    missing_record_is_none,
    record_is_returned_unchanged,
    put_that_expects_absence_is_stored_once,
    one_winner_among_puts_that_expect_absence,
    one_winner_among_puts_that_expect_the_same_version,
    put_that_expects_anything_overwrites,
    put_with_another_version_is_a_conflict,
    put_with_a_version_of_a_missing_record_is_a_conflict,
    version_changes_with_the_value,
    versions_survive_a_restart,
    compare_and_put_loses_no_update,
    delete_compares_the_version,
    delete_of_a_missing_record_is_missing,
    deleted_record_can_be_created_again,
    record_expires_after_its_ttl,
    put_without_ttl_keeps_the_ttl,
    put_with_ttl_replaces_the_ttl,
    get_does_not_renew_the_ttl,
    expired_record_counts_as_absent,
    sweep_removes_only_expired_records,
    binary_records_are_returned_unchanged,
    tenants_with_equal_names_are_separate,
    hostile_names_are_kept_apart,
];

impl LawContext {
    async fn get(&self, key: &Key) -> Option<Record> {
        self.store.get(key).await.expect("the store answers")
    }

    async fn put(&self, key: &Key, value: &str, expect: Expect, ttl: Option<Duration>) -> Put {
        let value = Bytes::from(value.to_owned());
        self.store.put(key, value, &expect, ttl).await.expect("the store answers")
    }

    /// Whether a put without a TTL created the record; `None` if it was a conflict.
    async fn created(&self, key: &Key, value: &str, expect: Expect) -> Option<bool> {
        match self.put(key, value, expect, None).await {
            Put::Stored { created, .. } => Some(created),
            Put::Conflict => None,
        }
    }

    async fn stored(
        &self,
        key: &Key,
        value: &str,
        expect: Expect,
        ttl: Option<Duration>,
    ) -> Version {
        match self.put(key, value, expect, ttl).await {
            Put::Stored { version, .. } => version,
            Put::Conflict => panic!("expected to be stored"),
        }
    }
}

async fn missing_record_is_none(s: LawContext, key: Key) {
    assert_eq!(s.get(&key).await, None);
}

async fn record_is_returned_unchanged(s: LawContext, key: Key) {
    let version = s.stored(&key, "{\"a\": 1}", Expect::Any, None).await;
    let record = Record { value: "{\"a\": 1}".into(), version, expires_in: None };
    assert_eq!(s.get(&key).await, Some(record));
}

async fn put_that_expects_absence_is_stored_once(s: LawContext, key: Key) {
    assert_eq!(s.created(&key, "1", Expect::Absent).await, Some(true));
    assert_eq!(s.put(&key, "2", Expect::Absent, None).await, Put::Conflict);
    assert_eq!(s.get(&key).await.unwrap().value, "1");
}

async fn race(s: &LawContext, key: &Key, expect: Expect) -> usize {
    let put = |i| {
        let (s, key, expect) = (s.clone(), key.clone(), expect.clone());
        async move { s.put(&key, &format!("v{i}"), expect, None).await }
    };
    let answers = concurrently((0..32).map(put)).await;
    answers.iter().filter(|answer| matches!(answer, Put::Stored { .. })).count()
}

async fn one_winner_among_puts_that_expect_absence(s: LawContext, key: Key) {
    assert_eq!(race(&s, &key, Expect::Absent).await, 1);
}

async fn one_winner_among_puts_that_expect_the_same_version(s: LawContext, key: Key) {
    let version = s.stored(&key, "first", Expect::Absent, None).await;
    assert_eq!(race(&s, &key, Expect::Version(version)).await, 1);
}

async fn put_that_expects_anything_overwrites(s: LawContext, key: Key) {
    assert_eq!(s.created(&key, "1", Expect::Any).await, Some(true));
    assert_eq!(s.created(&key, "2", Expect::Any).await, Some(false));
    assert_eq!(s.get(&key).await.unwrap().value, "2");
}

async fn put_with_another_version_is_a_conflict(s: LawContext, key: Key) {
    let old = s.stored(&key, "1", Expect::Any, Some(LONG)).await;
    let version = s.stored(&key, "2", Expect::Version(old.clone()), None).await;
    for wrong in [old, Version::new("no such version"), Version::new("")] {
        assert_eq!(s.put(&key, "3", Expect::Version(wrong), None).await, Put::Conflict);
    }
    let record = s.get(&key).await.unwrap();
    assert_eq!((record.value, record.version), ("2".into(), version));
}

async fn put_with_a_version_of_a_missing_record_is_a_conflict(s: LawContext, key: Key) {
    assert_eq!(s.put(&key, "1", Expect::Version(Version::new("1")), None).await, Put::Conflict);
    assert_eq!(s.get(&key).await, None);
}

async fn version_changes_with_the_value(s: LawContext, key: Key) {
    let first = s.stored(&key, "1", Expect::Any, None).await;
    let second = s.stored(&key, "2", Expect::Any, None).await;
    assert_ne!(first, second);
    assert!(second.as_str().bytes().all(|b| (0x21..0x7f).contains(&b) && b != b'"'));
}

async fn versions_survive_a_restart(s: LawContext, key: Key) {
    let version = s.stored(&key, "1", Expect::Any, None).await;
    let again = s.reopened().await;
    assert_eq!(again.get(&key).await.unwrap().version, version);
    again.stored(&key, "2", Expect::Version(version), None).await;
}

/// Eight writers on two nodes add one at a time; every stored put must be in the sum.
async fn compare_and_put_loses_no_update(s: LawContext, key: Key) {
    let (key, other) = (key, s.reopened().await);
    s.stored(&key, "0", Expect::Absent, None).await;
    let add = |i| {
        let (s, key) = (if i % 2 == 0 { s.clone() } else { other.clone() }, key.clone());
        async move {
            let mut added = 0;
            while added < 10 {
                let record = s.get(&key).await.unwrap();
                let sum: u32 = std::str::from_utf8(&record.value).unwrap().parse().unwrap();
                let expect = Expect::Version(record.version);
                if let Put::Stored { .. } = s.put(&key, &(sum + 1).to_string(), expect, None).await
                {
                    added += 1;
                }
            }
        }
    };
    concurrently((0..8).map(add)).await;
    assert_eq!(s.get(&key).await.unwrap().value, "80");
}

async fn delete_compares_the_version(s: LawContext, key: Key) {
    let old = s.stored(&key, "1", Expect::Any, None).await;
    let new = s.stored(&key, "2", Expect::Any, None).await;
    assert_eq!(s.store.delete(&key, &Expect::Version(old)).await.unwrap(), Deleted::Conflict);
    assert_eq!(s.store.delete(&key, &Expect::Absent).await.unwrap(), Deleted::Conflict);
    assert_eq!(s.get(&key).await.unwrap().value, "2");
    assert_eq!(s.store.delete(&key, &Expect::Version(new)).await.unwrap(), Deleted::Done);
    assert_eq!(s.get(&key).await, None);
}

async fn delete_of_a_missing_record_is_missing(s: LawContext, key: Key) {
    for expect in [Expect::Any, Expect::Absent, Expect::Version(Version::new("1"))] {
        assert_eq!(s.store.delete(&key, &expect).await.unwrap(), Deleted::Missing);
    }
}

async fn deleted_record_can_be_created_again(s: LawContext, key: Key) {
    s.stored(&key, "1", Expect::Any, Some(LONG)).await;
    assert_eq!(s.store.delete(&key, &Expect::Any).await.unwrap(), Deleted::Done);
    assert_eq!(s.created(&key, "2", Expect::Absent).await, Some(true));
    assert_eq!(s.get(&key).await.unwrap().expires_in, None);
}

async fn record_expires_after_its_ttl(s: LawContext, key: Key) {
    s.stored(&key, "1", Expect::Any, Some(SHORT)).await;
    s.outlive(SHORT).await;
    assert_eq!(s.get(&key).await, None);
    assert_eq!(s.store.delete(&key, &Expect::Any).await.unwrap(), Deleted::Missing);
}

async fn put_without_ttl_keeps_the_ttl(s: LawContext, _: Key) {
    let (short, long) = (s.record("short"), s.record("long"));
    // Repeated with a longer TTL if a busy machine let the first one expire before the second put.
    let mut brief = 10 * SHORT;
    for _ in 0..5 {
        brief *= 2;
        s.stored(&short, "1", Expect::Any, Some(brief)).await;
        let put = s.put(&short, "2", Expect::Any, None).await;
        if matches!(put, Put::Stored { created: false, .. }) {
            break;
        }
    }
    s.stored(&long, "1", Expect::Any, Some(LONG)).await;
    let version = s.stored(&long, "2", Expect::Any, None).await;
    s.stored(&long, "3", Expect::Version(version), None).await;
    s.outlive(brief).await;
    assert_eq!(s.get(&short).await, None);
    let left = s.get(&long).await.unwrap().expires_in.unwrap();
    assert!(left <= LONG && left > LONG / 2);
}

async fn put_with_ttl_replaces_the_ttl(s: LawContext, _: Key) {
    let (longer, never_before) = (s.record("longer"), s.record("never"));
    s.stored(&longer, "1", Expect::Any, Some(SHORT)).await;
    s.stored(&longer, "2", Expect::Any, Some(LONG)).await;
    s.stored(&never_before, "1", Expect::Any, None).await;
    s.stored(&never_before, "2", Expect::Any, Some(SHORT)).await;
    s.outlive(SHORT).await;
    assert_eq!(s.get(&longer).await.unwrap().value, "2");
    assert_eq!(s.get(&never_before).await, None);
}

async fn get_does_not_renew_the_ttl(s: LawContext, key: Key) {
    s.stored(&key, "1", Expect::Any, Some(SHORT)).await;
    for _ in 0..4 {
        s.outlive(SHORT / 4).await;
        s.get(&key).await;
    }
    assert_eq!(s.get(&key).await, None);
}

async fn expired_record_counts_as_absent(s: LawContext, _: Key) {
    let (absent, version) = (s.record("absent"), s.record("version"));
    s.stored(&absent, "1", Expect::Any, Some(SHORT)).await;
    let old = s.stored(&version, "1", Expect::Any, Some(SHORT)).await;
    s.outlive(SHORT).await;
    assert_eq!(s.put(&version, "2", Expect::Version(old), None).await, Put::Conflict);
    assert_eq!(s.created(&absent, "2", Expect::Absent).await, Some(true));
    assert_eq!(s.get(&absent).await.unwrap().expires_in, None);
}

async fn binary_records_are_returned_unchanged(s: LawContext, _: Key) {
    let every_byte: Bytes = (0..=255).cycle().take(4096).collect::<Vec<u8>>().into();
    let large: Bytes = vec![7_u8; 1_048_576].into();
    for (name, value) in [("bytes", every_byte), ("large", large), ("empty", Bytes::new())] {
        let key = s.record(name);
        let put = s.store.put(&key, value.clone(), &Expect::Any, None).await.unwrap();
        assert!(matches!(put, Put::Stored { .. }));
        assert!(s.get(&key).await.unwrap().value == value);
    }
}

async fn tenants_with_equal_names_are_separate(s: LawContext, mine: Key) {
    let theirs = Key::record(&s.other_tenant(), mine.name()).unwrap();
    s.stored(&mine, "secret", Expect::Any, None).await;
    assert_eq!(s.get(&theirs).await, None);
    assert_eq!(s.store.delete(&theirs, &Expect::Any).await.unwrap(), Deleted::Missing);
}

async fn hostile_names_are_kept_apart(s: LawContext, _: Key) {
    let names = ["*", "%", "%3A", ":", "{", "}", "{a}", "'", "\"", "\\", "--", "~", "$1", "[a]"];
    for name in names {
        s.stored(&s.record(name), name, Expect::Absent, None).await;
    }
    for name in names {
        assert_eq!(s.get(&s.record(name)).await.unwrap().value, name.as_bytes());
    }
}

async fn sweep_removes_only_expired_records(s: LawContext, kept: Key) {
    let [gone, later] = ["gone", "later"].map(|name| s.record(name));
    for (key, ttl) in [(&gone, Some(SHORT)), (&later, Some(LONG)), (&kept, None)] {
        assert!(matches!(s.put(key, "v", Expect::Any, ttl).await, Put::Stored { .. }));
    }
    s.outlive(SHORT).await;
    s.sweep(1).await;
    assert!(s.get(&gone).await.is_none());
    assert!(s.get(&later).await.is_some() && s.get(&kept).await.is_some());
}
