//! The last transaction on a real Redis: every line of the original bot's contract.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bookkeeping_bot::entry::{BookkeepingEntry, Changes};
use bookkeeping_bot::last::{LastTransaction, Outcome, TTL, name};
use bytes::Bytes;
use hapax::document::DocumentError;
use hapax::{Deleted, Expect, Key, Put, Record, Records, StoreConfig, StoreError};
use hapax_testkit::{Redis, wait_for};
use tokio::sync::Barrier;

const USER: &str = "Uf00d0000000000000000000000000001";
const TIMEOUT: Duration = Duration::from_secs(60);

fn open(redis: &Redis, timeout: Duration) -> Arc<dyn hapax::Store> {
    let config = StoreConfig::default().timeout(timeout);
    hapax::open(&redis.url(), &config.redis_verbatim(["user:*:last_transaction"])).expect("a URL")
}

fn start() -> (Redis, LastTransaction) {
    let redis = Redis::start();
    let last = LastTransaction::new(open(&redis, TIMEOUT), TTL);
    (redis, last)
}

/// A Redis with a lunch as the last transaction.
async fn start_with_lunch() -> (Redis, LastTransaction) {
    let (redis, last) = start();
    last.set(USER, &lunch()).await.expect("stored");
    (redis, last)
}

/// A short timeout, for tests in which Redis is down.
fn hurried(redis: &Redis) -> LastTransaction {
    LastTransaction::new(open(redis, Duration::from_secs(1)), TTL)
}

/// Another program stores this value, for an hour.
fn overwrite(redis: &Redis, entry: &BookkeepingEntry) {
    redis.cli(&["SET", &name(USER), &json(entry), "EX", "3600"]);
}

fn lunch() -> BookkeepingEntry {
    BookkeepingEntry { item: "午餐🥚".into(), ..BookkeepingEntry::example() }
}

fn dinner() -> BookkeepingEntry {
    let transaction_id = "20251129-140100".into();
    BookkeepingEntry { item: "晚餐🥚".into(), transaction_id, ..BookkeepingEntry::example() }
}

fn item(text: &str) -> Changes {
    Changes::default().with("品項", text)
}

fn json(entry: &BookkeepingEntry) -> String {
    serde_json::to_string(entry).expect("JSON")
}

fn stored(redis: &Redis) -> String {
    redis.cli(&["GET", &name(USER)])
}

fn ttl(redis: &Redis) -> i64 {
    redis.cli(&["PTTL", &name(USER)]).parse().expect("a number")
}

#[tokio::test]
async fn what_is_set_is_got_and_a_missing_key_is_none() {
    let (_redis, last) = start();
    assert_eq!(last.get(USER).await.expect("an answer"), None);
    last.set(USER, &lunch()).await.expect("stored");
    assert_eq!(last.get(USER).await.expect("an answer").map(|last| last.value), Some(lunch()));
    assert_eq!(last.get("Uf00dother").await.expect("an answer"), None, "each user has his own");
}

#[tokio::test]
async fn the_record_is_plain_json_under_the_key_of_the_original_bot() {
    let (redis, last) = start_with_lunch().await;
    let key = format!("user:{USER}:last_transaction");
    assert_eq!(redis.cli(&["GET", &key]), json(&lunch()));
    // An entry that another program wrote with different JSON spacing can be read.
    let foreign = json(&dinner()).replace("100.0", "100").replace(",\"", ", \"");
    redis.cli(&["SET", &key, &foreign, "EX", "3600"]);
    assert_eq!(last.get(USER).await.expect("an answer").map(|last| last.value), Some(dinner()));
    assert_eq!(last.update(USER, &item("宵夜🥚")).await, Outcome::Done);
    assert_eq!(stored(&redis), json(&BookkeepingEntry { item: "宵夜🥚".into(), ..dinner() }));
}

#[tokio::test]
async fn the_ttl_is_an_hour_renewed_by_each_change_and_not_by_reading() {
    let (redis, last) = start();
    assert_eq!(TTL, Duration::from_secs(3600));
    last.set(USER, &lunch()).await.expect("stored");
    assert!((3_000_000..=3_600_000).contains(&ttl(&redis)), "{}", ttl(&redis));

    let aged = || redis.cli(&["PEXPIRE", &name(USER), "1000000"]);
    aged();
    let kept = last.get(USER).await.expect("an answer").expect("it is there");
    assert!(kept.expires_in.is_some_and(|left| left <= Duration::from_secs(1000)));
    assert!(ttl(&redis) <= 1_000_000, "a read does not renew");
    assert!(last.draft(USER, &item("🥚")).await.is_ok());
    assert!(ttl(&redis) <= 1_000_000, "nor does an edit before it is stored");

    assert_eq!(last.update(USER, &item("工作午餐🥚")).await, Outcome::Done);
    assert!(ttl(&redis) > 3_000_000, "an edit renews");
    aged();
    last.set(USER, &lunch()).await.expect("stored");
    assert!(ttl(&redis) > 3_000_000, "a booking renews");
}

#[tokio::test]
async fn an_edit_changes_its_fields_and_no_others() {
    let (redis, last) = start();
    assert_eq!(last.update(USER, &item("🥚")).await, Outcome::Missing);
    last.set(USER, &lunch()).await.expect("stored");
    let changes = item("工作午餐🥚").with("原幣金額", "120").with("分類", "");
    assert_eq!(last.update(USER, &changes).await.message(), "修改成功");
    let wanted = BookkeepingEntry { item: "工作午餐🥚".into(), amount: 120.0, ..lunch() };
    assert_eq!(stored(&redis), json(&wanted), "the empty value kept the old one");
    // Sequential edits build on each other.
    assert_eq!(last.update(USER, &Changes::default().with("匯率", 2)).await, Outcome::Done);
    assert_eq!(stored(&redis), json(&BookkeepingEntry { rate: 2.0, ..wanted }));
}

#[tokio::test]
async fn what_breaks_a_rule_is_refused_and_nothing_is_stored() {
    let (redis, last) = start_with_lunch().await;
    redis.cli(&["PEXPIRE", &name(USER), "1000000"]);
    for (field, value) in [
        ("原幣金額", "-1"),
        ("顏色", "紅🥚"),
        ("交易ID", "20251129-140000"),
        ("日期", "2025-02-30"),
    ] {
        let changes = item("工作午餐🥚").with(field, value);
        let outcome = last.update(USER, &changes).await;
        assert!(matches!(&outcome, Outcome::Refused(error) if error.field == field), "{field}");
        assert!(outcome.text().contains(field), "the message names the field");
    }
    assert_eq!(stored(&redis), json(&lunch()));
    assert!(ttl(&redis) <= 1_000_000);
}

/// The original bot's own conflict test never conflicted; here the change is between the read and
/// the put.
#[tokio::test]
async fn hole_7_a_change_between_read_and_put_is_a_conflict_and_stays() {
    let (redis, last) = start_with_lunch().await;
    let draft = last.draft(USER, &item("工作午餐🥚")).await.expect("a draft");
    overwrite(&redis, &dinner());
    assert_eq!(last.store(USER, &draft).await, Outcome::Changed);
    assert_eq!(Outcome::Changed.text(), "交易已變更，請重新操作");
    assert_eq!(stored(&redis), json(&dinner()));
}

/// Ids have a resolution of one second; versions do not.
#[tokio::test]
async fn hole_9_a_change_under_the_same_transaction_id_is_a_conflict_too() {
    let (redis, last) = start_with_lunch().await;
    let draft = last.draft(USER, &item("工作午餐🥚")).await.expect("a draft");
    let same_id = BookkeepingEntry { amount: 101.0, ..lunch() };
    assert_eq!(same_id.transaction_id, lunch().transaction_id);
    overwrite(&redis, &same_id);
    assert_eq!(last.store(USER, &draft).await, Outcome::Changed);
    assert_eq!(stored(&redis), json(&same_id));
}

/// A store that delays writes until both clients have read.
struct BothRead(Arc<dyn hapax::Store>, Barrier);

#[async_trait]
impl Records for BothRead {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.0.get(key).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        self.1.wait().await;
        self.0.put(key, value, expect, ttl).await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        self.0.delete(key, expect).await
    }
}

#[tokio::test]
async fn hole_7_of_two_edits_that_read_the_same_one_wins_and_the_other_is_told() {
    let (redis, _) = start_with_lunch().await;
    let store = Arc::new(BothRead(open(&redis, TIMEOUT), Barrier::new(2)));
    let last = LastTransaction::new(store, TTL);
    let (ones, others) = (item("工作午餐🥚"), item("早午餐🥚"));
    let (one, other) = tokio::join!(last.update(USER, &ones), last.update(USER, &others));
    let winner = match (&one, &other) {
        (Outcome::Done, Outcome::Changed) => "工作午餐🥚",
        (Outcome::Changed, Outcome::Done) => "早午餐🥚",
        outcomes => panic!("{outcomes:?}"),
    };
    assert_eq!(stored(&redis), json(&BookkeepingEntry { item: winner.into(), ..lunch() }));
}

#[tokio::test]
async fn a_record_that_expires_between_read_and_put_is_told_as_expired() {
    let (redis, last) = start_with_lunch().await;
    let draft = last.draft(USER, &item("工作午餐🥚")).await.expect("a draft");
    redis.cli(&["PEXPIRE", &name(USER), "1"]);
    let gone = || (redis.cli(&["EXISTS", &name(USER)]) == "0").then_some(());
    wait_for("it expires", TIMEOUT, gone);
    let outcome = last.store(USER, &draft).await;
    assert_eq!(outcome.text(), "交易已過期（1 小時限制）");
    assert_eq!(redis.cli(&["EXISTS", &name(USER)]), "0", "nothing is brought back");
    // Afterwards the record is already missing at the read.
    let missing = last.update(USER, &item("🥚")).await;
    assert_eq!(missing.message(), "無可修改的交易記錄");
    assert_eq!(missing.text(), "目前沒有可修改的交易記錄（交易記錄會在 1 小時後自動清除）");
}

#[tokio::test]
async fn hole_8_a_store_that_hangs_or_is_gone_is_told_apart_from_a_missing_record() {
    let (redis, patient) = start_with_lunch().await;
    let last = hurried(&redis);
    redis.stop();
    let hanging = last.update(USER, &item("🥚")).await;
    assert_eq!(hanging.text(), "系統暫時無法讀取交易記錄，請稍後再試");
    assert!(matches!(last.get(USER).await, Err(DocumentError::Store(_))));
    redis.kill();
    assert_eq!(last.update(USER, &item("🥚")).await, Outcome::Unreadable);
    redis.restart();
    wait_for_redis(&patient).await;
    assert_eq!(patient.update(USER, &item("🥚")).await, Outcome::Done, "and it is back");
}

#[tokio::test]
async fn a_store_that_hangs_or_is_gone_at_the_put_is_never_told_as_success() {
    let (redis, patient) = start_with_lunch().await;
    let last = hurried(&redis);
    let draft = patient.draft(USER, &item("工作午餐🥚")).await.expect("a draft");
    redis.stop();
    let uncertain = last.store(USER, &draft).await;
    assert_eq!(uncertain.text(), "系統暫時無法儲存變更，請稍後再試");
    assert_eq!(uncertain.message(), "儲存失敗，請稍後再試");
    redis.kill();
    assert_eq!(last.store(USER, &draft).await, Outcome::Uncertain);
    redis.restart();
    wait_for_redis(&patient).await;
    // The record holds either the old entry or the uncertain write.
    let now = stored(&redis);
    assert!(now == json(&lunch()) || now == json(&draft.after));
}

/// Waits until the connection is back.
async fn wait_for_redis(last: &LastTransaction) {
    let since = std::time::Instant::now();
    while last.get(USER).await.is_err() {
        assert!(since.elapsed() < TIMEOUT, "Redis is back and is not used");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_full_store_refuses_and_that_is_another_text() {
    let (redis, last) = start_with_lunch().await;
    let draft = last.draft(USER, &item("工作午餐🥚")).await.expect("a draft");
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let outcome = last.store(USER, &draft).await;
    assert_eq!(
        (outcome.clone(), outcome.text()),
        (Outcome::NotStored, "儲存失敗，請稍後再試".to_owned())
    );
    assert_eq!(stored(&redis), json(&lunch()));
}

#[tokio::test]
async fn hole_8_a_corrupt_value_has_its_own_answer_and_is_left_as_it_is() {
    let (redis, last) = start();
    let negative = json(&BookkeepingEntry { amount: -1.0, ..lunch() });
    let more = json(&lunch()).replace('}', r#","顏色":"紅🥚"}"#);
    for corrupt in ["no JSON 🥚", "{}", "[1]", "\"🥚\"", negative.as_str(), more.as_str(), ""] {
        redis.cli(&["SET", &name(USER), corrupt]);
        assert!(matches!(last.get(USER).await, Err(DocumentError::Corrupt(_))), "{corrupt}");
        assert_eq!(last.update(USER, &item("🥚")).await.text(), "資料格式錯誤，請重新記帳");
        assert_eq!(stored(&redis), corrupt);
    }
    redis.cli(&["DEL", &name(USER)]);
    redis.cli(&["RPUSH", &name(USER), "a", "list"]);
    assert_eq!(last.update(USER, &item("🥚")).await, Outcome::Corrupt);
    assert_eq!(redis.cli(&["LLEN", &name(USER)]), "2");
    // 請重新記帳
    redis.cli(&["SET", &name(USER), "no JSON 🥚"]);
    last.set(USER, &lunch()).await.expect("stored");
    assert_eq!(stored(&redis), json(&lunch()));
}

#[tokio::test]
async fn a_deletion_deletes_and_says_whether_there_was_anything() {
    let (redis, last) = start();
    assert!(!last.delete(USER).await.expect("an answer"));
    last.set(USER, &lunch()).await.expect("stored");
    let kept = last.get(USER).await.expect("an answer").expect("it is there");
    overwrite(&redis, &dinner());
    assert_eq!(last.withdraw(USER, kept.version.as_str()).await, Outcome::Changed);
    assert_eq!(stored(&redis), json(&dinner()), "another program's entry is not deleted");
    assert!(last.delete(USER).await.expect("an answer"));
    assert_eq!(redis.cli(&["EXISTS", &name(USER)]), "0");
    assert_eq!(last.withdraw(USER, kept.version.as_str()).await, Outcome::Expired);
    redis.kill();
    assert!(hurried(&redis).delete(USER).await.is_err());
}
