//! The bot on both ledgers: each message is decided once, retried as needed, and has one effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bookkeeping_bot::bot::BookkeepingBot;
use bookkeeping_bot::entry::{BookkeepingEntry, Changes};
use bookkeeping_bot::last::{Draft, LastTransaction, TTL};
use bookkeeping_bot::ledger::{Decision, Ledger, LedgerError, Message, Settled};
use bookkeeping_bot::moment::{LocalTime, Moment, Offset};
use bookkeeping_bot::reader::{Intent, ReadError, Reader, RuleReader};
use bytes::Bytes;
use hapax::memory::MemoryStore;
use hapax::{Clock, Deleted, Expect, Key, ManualClock, Put, Record, Records, StoreError};
use hapax_testkit::Postgres;
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_secs(60);
const USER: &str = "Uf00d0000000000000000000000000002";

/// A reader that counts its calls.
#[derive(Default)]
struct Counting(AtomicUsize);

#[async_trait]
impl Reader for Counting {
    async fn read(&self, text: &str, at: Moment) -> Result<Intent, ReadError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        RuleReader.read(text, at).await
    }
}

/// A store that can be made unavailable.
#[derive(Default)]
struct FailingStore(MemoryStore, AtomicBool);

impl FailingStore {
    fn reachable(&self) -> Result<&MemoryStore, StoreError> {
        match self.1.load(Ordering::SeqCst) {
            true => Err(StoreError::Unavailable { reason: "away".into(), source: None }),
            false => Ok(&self.0),
        }
    }
}

#[async_trait]
impl Records for FailingStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.reachable()?.get(key).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        self.reachable()?.put(key, value, expect, ttl).await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        self.reachable()?.delete(key, expect).await
    }
}

struct World {
    bot: Arc<BookkeepingBot>,
    ledger: Ledger,
    last: LastTransaction,
    store: Arc<FailingStore>,
    reader: Arc<Counting>,
    clock: Arc<ManualClock>,
}

impl World {
    async fn new(url: &str) -> Self {
        let ledger = persist(async || Ledger::open(url).await).await;
        let (store, reader, clock) =
            <(Arc<FailingStore>, Arc<Counting>, Arc<ManualClock>)>::default();
        let last = LastTransaction::new(store.clone(), TTL);
        let time = LocalTime::new(clock.clone(), Offset::default());
        let bot = Arc::new(BookkeepingBot::new(reader.clone(), ledger.clone(), last.clone(), time));
        Self { bot, ledger, last, store, reader, clock }
    }

    /// Handles a message, and advances the clock by a second.
    async fn hear(&self, id: &str, text: &str) -> Vec<String> {
        let answer = self.hear_at(None, id, text).await;
        self.clock.advance(Duration::from_secs(1));
        answer
    }

    /// Handles a message that was sent at this time.
    async fn hear_at(&self, sent: Option<u64>, id: &str, text: &str) -> Vec<String> {
        persist(async || self.bot.answer(id, USER, text, sent).await).await
    }

    /// Leaves the ledger as if an attempt had crashed right after settling the message.
    async fn die_after_settling(&self, id: &str, decision: &Decision) {
        self.settle(id, decision).await;
        self.clock.advance(Duration::from_secs(1));
    }

    async fn settle(&self, id: &str, decision: &Decision) -> Settled {
        let (id, user, now) = (id.to_owned(), USER.to_owned(), self.clock.now());
        let message = Message { id, user, now };
        persist(async || self.ledger.settle(&message, decision).await).await
    }

    async fn record(&self) -> Option<(String, f64)> {
        let last = self.last.get(USER).await.expect("an answer")?;
        Some((last.value.item, last.value.amount))
    }

    /// Items and amounts in their current state, without withdrawn rows.
    async fn rows(&self) -> Vec<(String, f64)> {
        let rows = persist(async || self.ledger.rows().await).await.into_iter();
        let worth = rows.filter(|row| !row.withdrawn).map(|row| row.amended.unwrap_or(row.entry));
        worth.map(|entry| (entry.item, entry.amount)).collect()
    }

    /// An edit of the record's amount to 120.
    async fn draft(&self) -> Draft {
        let changes = Changes::default().with("原幣金額", 120);
        self.last.draft(USER, &changes).await.expect("a draft")
    }

    fn set_away(&self, away: bool) {
        self.store.1.store(away, Ordering::SeqCst);
    }

    async fn book(&self, text: &str) -> Decision {
        let time = LocalTime::new(self.clock.clone(), Offset::default());
        match RuleReader.read(text, time.sent(None)).await {
            Ok(Intent::Book(entries)) => Decision::Book { entries },
            other => panic!("{other:?}"),
        }
    }
}

/// Retries until an answer comes, as the gateway would: the ledger's limits are a few seconds, and
/// a busy machine may take longer.
async fn persist<T, E: std::fmt::Display>(ask: impl AsyncFn() -> Result<T, E>) -> T {
    let since = std::time::Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(since.elapsed() < TIMEOUT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn at(item: &str, amount: f64) -> (String, f64) {
    (item.to_owned(), amount)
}

/// Runs a test on SQLite and on PostgreSQL.
async fn on_both(test: impl AsyncFn(World)) {
    let folder = tempfile::tempdir().expect("a folder");
    test(World::new(&format!("sqlite:{}/ledger.db", folder.path().display())).await).await;
    let postgres = Postgres::start();
    test(World::new(&postgres.url()).await).await;
}

#[tokio::test]
async fn a_conversation_is_booked_edited_shown_and_withdrawn() {
    on_both(async |world| {
        let said = world.hear("1", "午餐🥚 100 信用卡").await;
        assert_eq!(said, ["✅ 已記帳 1 筆\n・午餐🥚 100 TWD（飲食，信用卡）"]);
        let said = world.hear("2", "改金額 120").await;
        assert_eq!(said[0], "修改成功");
        assert!(said[1].contains("原幣金額：120"), "{said:?}");
        assert!(world.hear("3", "上一筆").await[0].contains("午餐🥚"));
        let said = world.hear("4", "早餐🥚 50、咖啡🥚 80").await;
        assert!(said[0].starts_with("✅ 已記帳 2 筆"), "{said:?}");
        assert_eq!(world.record().await, Some(at("咖啡🥚", 80.0)), "the last one may be edited");
        assert_eq!(world.hear("5", "刪除").await, ["🗑️ 已刪除：咖啡🥚 80 TWD"]);
        assert_eq!(world.record().await, None);
        let nothing = "目前沒有可修改的交易記錄（交易記錄會在 1 小時後自動清除）";
        for (id, text) in [("6", "刪除"), ("7", "上一筆"), ("8", "改金額 5")] {
            assert_eq!(world.hear(id, text).await, [nothing], "{text}");
        }
        assert_eq!(world.rows().await, [at("午餐🥚", 120.0), at("早餐🥚", 50.0)]);
        let rows = world.ledger.rows().await.expect("rows");
        assert_eq!(rows.len(), 3, "nothing leaves the ledger");
        assert_eq!(rows[0].entry.amount, 100.0, "as it was booked");
        assert_eq!(rows[0].entry.transaction_id, "20010909-094640");
    })
    .await;
}

#[tokio::test]
async fn what_breaks_a_rule_books_and_edits_nothing() {
    on_both(async |world| {
        assert_eq!(
            world.hear("1", "午餐🥚 -100").await,
            ["無法記帳：「原幣金額」必須是 0 到 1000000000000 的數字"]
        );
        assert_eq!(world.hear("2", "早餐🥚 50、午餐🥚 -1").await.len(), 1);
        assert_eq!((world.rows().await, world.record().await), (vec![], None));
        world.hear("3", "午餐🥚 100").await;
        for (id, text, field) in [
            ("4", "改金額 -5", "原幣金額"),
            ("5", "改顏色 紅", "顏色"),
            ("6", "改交易ID 1", "交易ID"),
        ] {
            let said = world.hear(id, text).await;
            assert!(said[0].starts_with("無法修改：") && said[0].contains(field), "{said:?}");
        }
        assert_eq!(world.record().await, Some(at("午餐🥚", 100.0)));
        assert_eq!(world.hear("7", "改品項").await[0], "修改成功");
        assert_eq!(
            world.record().await,
            Some(at("午餐🥚", 100.0)),
            "an empty value keeps the old one"
        );
    })
    .await;
}

#[tokio::test]
async fn repeated_message_is_answered_but_not_booked_again() {
    on_both(async |world| {
        let first = world.hear("1", "午餐🥚 100").await;
        let edited = world.hear("2", "改金額 120").await;
        assert_eq!(world.hear("1", "午餐🥚 100").await, first);
        assert_eq!(world.record().await, Some(at("午餐🥚", 120.0)), "the edit stays");
        world.hear("3", "晚餐🥚 200").await;
        assert_eq!(world.hear("2", "改金額 120").await, edited);
        assert_eq!(world.record().await, Some(at("晚餐🥚", 200.0)), "a newer one is not edited");
        assert_eq!(world.rows().await, [at("午餐🥚", 120.0), at("晚餐🥚", 200.0)]);
        assert_eq!(world.reader.0.load(Ordering::SeqCst), 3);
    })
    .await;
}

#[tokio::test]
async fn twenty_copies_at_once_book_once() {
    on_both(async |world| {
        let mut copies = JoinSet::new();
        for _ in 0..20 {
            let bot = world.bot.clone();
            // Another copy may have the message in an open transaction, hence `persist`.
            let answer = async move || bot.answer("1", USER, "早餐🥚 50、咖啡🥚 80", None).await;
            copies.spawn(persist(answer));
        }
        let answers = copies.join_all().await;
        assert!(answers.iter().all(|answer| answer[0].starts_with("✅ 已記帳 2 筆")));
        assert_eq!(world.rows().await, [at("早餐🥚", 50.0), at("咖啡🥚", 80.0)]);
        assert_eq!(world.record().await, Some(at("咖啡🥚", 80.0)));
    })
    .await;
}

#[tokio::test]
async fn crash_between_commit_and_record_is_repaired_later() {
    on_both(async |world| {
        let decision = world.book("午餐🥚 100").await;
        world.die_after_settling("1", &decision).await;
        assert_eq!((world.rows().await.len(), world.record().await), (1, None));
        assert!(world.hear("1", "午餐🥚 100").await[0].starts_with("✅ 已記帳 1 筆"));
        assert_eq!(
            (world.rows().await.len(), world.record().await),
            (1, Some(at("午餐🥚", 100.0)))
        );
    })
    .await;
}

#[tokio::test]
async fn a_late_repair_takes_nothing_back_that_came_after_it() {
    on_both(async |world| {
        let lunch = world.book("午餐🥚 100").await;
        world.die_after_settling("1", &lunch).await;
        world.hear("2", "晚餐🥚 200").await;
        world.hear("1", "午餐🥚 100").await;
        assert_eq!(world.record().await, Some(at("晚餐🥚", 200.0)), "a later booking");

        // The attempt had stored the record and crashed before concluding; then the entry was
        // edited.
        let tea = world.book("茶🥚 30").await;
        world.die_after_settling("3", &tea).await;
        let Decision::Book { entries } = &tea else { unreachable!() };
        world.last.set(USER, &entries[0]).await.expect("stored");
        world.hear("4", "改金額 35").await;
        world.hear("3", "茶🥚 30").await;
        assert_eq!(world.record().await, Some(at("茶🥚", 35.0)), "a later edit");

        let bread = world.book("麵包🥚 40").await;
        world.die_after_settling("5", &bread).await;
        let Decision::Book { entries } = &bread else { unreachable!() };
        world.last.set(USER, &entries[0]).await.expect("stored");
        world.hear("6", "刪除").await;
        world.hear("5", "麵包🥚 40").await;
        assert_eq!(world.record().await, None, "a later deletion");
    })
    .await;
}

#[tokio::test]
async fn edit_that_crashed_after_its_put_is_reported_as_done() {
    on_both(async |world| {
        world.hear("1", "午餐🥚 100").await;
        let draft = world.draft().await;
        world.die_after_settling("2", &Decision::Edit { draft: draft.clone() }).await;
        assert_eq!(world.last.store(USER, &draft).await.message(), "修改成功");
        assert_eq!(world.hear("2", "改金額 120").await[0], "修改成功");
        assert_eq!(world.rows().await, [at("午餐🥚", 120.0)]);

        // The attempt crashed before the put, and the record was replaced meanwhile.
        let draft = world.draft().await;
        world.die_after_settling("3", &Decision::Edit { draft }).await;
        world.hear("4", "晚餐🥚 200").await;
        assert_eq!(world.hear("3", "改金額 120").await, ["交易已變更，請重新操作"]);
        assert_eq!(world.record().await, Some(at("晚餐🥚", 200.0)));

        // The deletion was done but not concluded.
        let last = world.last.get(USER).await.expect("an answer").expect("it is there");
        let version = last.version.as_str().to_owned();
        world.die_after_settling("5", &Decision::Delete { version, entry: last.value }).await;
        assert!(world.last.delete(USER).await.expect("an answer"));
        assert_eq!(world.hear("5", "刪除").await, ["🗑️ 已刪除：晚餐🥚 200 TWD"]);
        assert_eq!(world.rows().await, [at("午餐🥚", 120.0)]);
    })
    .await;
}

/// 交易ID has a resolution of one second, so it must not identify a row alone.
#[tokio::test]
async fn an_edit_amends_no_row_of_the_same_second_that_was_booked_after_it() {
    on_both(async |world| {
        let second = Some(world.clock.now().0);
        world.hear_at(second, "1", "午餐🥚 100").await;
        let draft = world.draft().await;
        let settled = world.settle("2", &Decision::Edit { draft: draft.clone() }).await;
        assert_eq!(world.last.store(USER, &draft).await.message(), "修改成功");
        world.hear_at(second, "3", "晚餐🥚 200").await;
        world.ledger.conclude(&settled, &["修改成功".into()], true).await.expect("concluded");
        assert_eq!(world.rows().await, [at("午餐🥚", 120.0), at("晚餐🥚", 200.0)]);
    })
    .await;
}

#[tokio::test]
async fn while_the_store_is_away_everything_is_booked_and_edits_say_so() {
    on_both(async |world| {
        world.hear("1", "午餐🥚 100").await;
        world.set_away(true);
        let said = world.hear("2", "晚餐🥚 200").await;
        assert!(said[0].starts_with("✅ 已記帳 1 筆"));
        assert_eq!(said[1], "已記入帳本，但暫時無法修改這筆交易");
        for (id, text) in [("3", "改金額 250"), ("4", "刪除"), ("5", "上一筆")] {
            assert_eq!(
                world.hear(id, text).await,
                ["系統暫時無法讀取交易記錄，請稍後再試"],
                "{text}"
            );
        }
        world.set_away(false);
        // The record is still the lunch, but the last booking is the dinner.
        assert_eq!(world.hear("6", "改金額 250").await[0], "修改成功");
        assert_eq!(world.rows().await, [at("午餐🥚", 100.0), at("晚餐🥚", 250.0)]);
        // The edit that failed during the outage is not carried out later.
        assert_eq!(world.hear("3", "改金額 999").await, ["系統暫時無法讀取交易記錄，請稍後再試"]);
        assert_eq!(world.record().await, Some(at("晚餐🥚", 250.0)));
    })
    .await;
}

#[tokio::test]
async fn store_lost_between_read_and_put_is_reported_for_good() {
    on_both(async |world| {
        world.hear("1", "午餐🥚 100").await;
        let draft = world.draft().await;
        world.die_after_settling("2", &Decision::Edit { draft }).await;
        world.set_away(true);
        let told = ["系統暫時無法儲存變更，請稍後再試"];
        assert_eq!(world.hear("2", "改金額 120").await, told);
        world.set_away(false);
        assert_eq!(
            world.hear("2", "改金額 120").await,
            told,
            "the user was told to try again himself"
        );
        assert_eq!(world.record().await, Some(at("午餐🥚", 100.0)));
        assert_eq!(world.rows().await, [at("午餐🥚", 100.0)]);
    })
    .await;
}

#[tokio::test]
async fn a_booking_that_waited_too_long_for_the_store_is_not_brought_back() {
    on_both(async |world| {
        world.set_away(true);
        world.hear("1", "午餐🥚 100").await;
        world.set_away(false);
        world.clock.advance(TTL);
        let said = world.hear("2", "改金額 5").await;
        assert_eq!(said, ["目前沒有可修改的交易記錄（交易記錄會在 1 小時後自動清除）"]);
        assert_eq!(world.rows().await, [at("午餐🥚", 100.0)]);
    })
    .await;
}

#[tokio::test]
async fn unreachable_ledger_books_nothing_and_allows_a_retry() {
    let postgres = Postgres::start();
    let world = World::new(&postgres.url()).await;
    world.hear("1", "午餐🥚 100").await;
    postgres.stop();
    let failed = world.bot.answer("2", USER, "晚餐🥚 200", None).await;
    assert_eq!(failed, Err(LedgerError::Unavailable));
    assert_eq!(failed.unwrap_err().to_string(), "the ledger gives no answer");
    postgres.cont();
    world.hear("2", "晚餐🥚 200").await;
    assert_eq!(world.rows().await, [at("午餐🥚", 100.0), at("晚餐🥚", 200.0)]);
}

#[tokio::test]
async fn a_ledger_is_a_file_or_a_server_and_nothing_else() {
    for url in
        ["", "ledger.db", "sqlite:", "redis://127.0.0.1/", "sqlite:/no/such/folder/ledger.db"]
    {
        assert!(Ledger::open(url).await.is_err(), "{url}");
    }
    let entry = BookkeepingEntry::example();
    assert!(!format!("{entry:?}").contains("午餐"), "nothing personal is shown by accident");
}
