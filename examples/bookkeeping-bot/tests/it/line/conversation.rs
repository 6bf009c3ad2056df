use std::process::Command;
use std::time::{Duration, Instant};

use bookkeeping_bot::last::name;
use example_common::bot_process::TIMEOUT;
use hapax_line::simulator::events;
use hapax_testkit::{Postgres, Redis, TcpProxy, wait_for};
use tokio::task::JoinSet;

use crate::line::support::{USER, World};

async fn converse(world: &World) {
    assert!(world.say("你好🥚").await[0].starts_with("您可以這樣說"));
    let said = world.say("改金額 5").await;
    assert_eq!(said, ["目前沒有可修改的交易記錄（交易記錄會在 1 小時後自動清除）"]);
    let said = world.say("午餐🥚 100 信用卡").await;
    assert_eq!(said, ["✅ 已記帳 1 筆\n・午餐🥚 100 TWD（飲食，信用卡）"]);
    let said = world.say("改金額 120").await;
    assert_eq!(said[0], "修改成功");
    assert!(said[1].contains("原幣金額：120"), "{said:?}");
    assert_eq!(world.say("修改品項 工作午餐🥚").await[0], "修改成功");
    assert_eq!(world.say("改品項").await[0], "修改成功");
    assert!(world.say("改金額 -1").await[0].contains("「原幣金額」"));
    assert!(world.say("改顏色 紅🥚").await[0].contains("「顏色」"));
    let said = world.say("上一筆").await;
    assert!(said[0].contains("品項：工作午餐🥚") && said[0].contains("原幣金額：120"), "{said:?}");
    assert!(world.say("早餐🥚 50、咖啡🥚 80").await[0].starts_with("✅ 已記帳 2 筆"));
    assert_eq!(world.say("刪除").await, ["🗑️ 已刪除：咖啡🥚 80 TWD"]);

    let rows = world.rows().await;
    let worth: Vec<_> = rows.iter().map(|row| row.amended.as_ref().unwrap_or(&row.entry)).collect();
    assert_eq!(worth.iter().map(|entry| entry.amount).collect::<Vec<_>>(), [120.0, 50.0, 80.0]);
    assert_eq!(worth[0].item, "工作午餐🥚");
    assert_eq!(rows.iter().map(|row| row.withdrawn).collect::<Vec<_>>(), [false, false, true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_on_redis_and_a_file_and_what_is_measured_of_it() {
    let redis = Redis::start();
    let mut world =
        World::new(Some(&redis.url()), None).await.variable("LAST_TRANSACTION_TTL", "120");
    world.start();
    converse(&world).await;

    // Other programs can read the record, and its TTL is the configured one.
    world.say("晚餐🥚 200").await;
    let stored = redis.cli(&["GET", &name(USER)]);
    assert!(stored.starts_with(r#"{"intent":"bookkeeping","日期":"#), "{stored}");
    let ttl: i64 = redis.cli(&["TTL", &name(USER)]).parse().expect("a number");
    assert!((1..=120).contains(&ttl), "{ttl}");
    redis.cli(&["SET", &name(USER), &stored.replace("晚餐", "宵夜"), "EX", "120"]);
    assert!(world.say("上一筆").await[0].contains("品項：宵夜🥚"));
    redis.cli(&["SET", &name(USER), "no JSON 🥚"]);
    assert_eq!(world.say("改金額 5").await, ["資料格式錯誤，請重新記帳"]);
    assert_eq!(redis.cli(&["GET", &name(USER)]), "no JSON 🥚");
    assert!(world.say("點心🥚 30").await[0].starts_with("✅"), "booking anew repairs it");
    assert_eq!(world.say("改金額 35").await[0], "修改成功");

    let (status, metrics) = world.get("/metrics");
    assert_eq!(status, 200);
    for line in [
        "kv_get_latency_bucket{le=\"0.05\"}",
        "kv_set_latency_bucket{le=\"0.05\"}",
        "kv_operations_total{operation=\"get\",result=\"hit\"}",
        "kv_operations_total{operation=\"get\",result=\"miss\"}",
        "kv_operations_total{operation=\"put\",result=\"stored\"}",
        "kv_operations_total{operation=\"delete\",result=\"deleted\"}",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    assert_eq!(world.get("/healthz").0, 200);
    // `/readyz` may fail for a moment on a stalled machine.
    wait_for("it is ready", TIMEOUT, || (world.get("/readyz").0 == 200).then_some(()));
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_on_files_alone_and_one_on_postgresql_alone() {
    let world = World::started(None).await;
    converse(&world).await;
    world.in_order();
    let postgres = Postgres::start();
    let mut world = World::new(Some(&postgres.url()), Some(&postgres.url())).await;
    world.start();
    converse(&world).await;
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_deliveries_at_once_are_one_booking_and_one_answer() {
    let redis = Redis::start();
    let world = World::started(Some(&redis.url())).await;
    let event = events::text(USER, "午餐🥚 100");
    let world = std::sync::Arc::new(world);
    let mut copies = JoinSet::new();
    for n in 0..20 {
        let (world, event) = (world.clone(), event.clone());
        let copy = if n == 0 { event } else { events::redelivered(&event) };
        copies.spawn(async move { world.deliver(&[copy]).await });
    }
    assert_eq!(copies.join_all().await, [Some(200); 20]);
    world.heard(&event).await;
    world.drained().await;
    assert_eq!(world.booked().await, [("午餐🥚".to_owned(), 100.0)]);
    assert_eq!(world.api.accepted_calls().len(), 1);
    std::sync::Arc::into_inner(world).expect("the last one").in_order();
}

/// Whether the edits overlap is up to chance; `last_transaction.rs` forces the overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_edits_in_one_webhook_either_follow_each_other_or_one_is_told() {
    let redis = Redis::start();
    let world = World::started(Some(&redis.url())).await;
    world.say("午餐🥚 100").await;
    for n in 0..10 {
        let edits = [
            events::text(USER, &format!("改金額 2{n}")),
            events::text(USER, &format!("改金額 3{n}")),
        ];
        assert_eq!(world.deliver(&edits).await, Some(200));
        let mut done = Vec::new();
        for (edit, amount) in edits.iter().zip(["2", "3"]) {
            match world.heard(edit).await.texts()[0].as_str() {
                "修改成功" => done.push(format!(r#""原幣金額":{amount}{n}.0"#)),
                "交易已變更，請重新操作" => {}
                other => panic!("{other}"),
            }
        }
        assert!(!done.is_empty(), "one edit wins");
        let stored = redis.cli(&["GET", &name(USER)]);
        assert!(done.iter().any(|amount| stored.contains(amount)), "{stored} after {done:?}");
    }
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_outage_allows_bookings_and_explains_edits() {
    let redis = Redis::start();
    let mut world = World::new(Some(&redis.url()), None).await.store_limits("600", "500");
    world.start();
    world.say("午餐🥚 100").await;
    redis.stop();
    works_without_redis(&world).await;
    redis.kill();
    assert_eq!(world.say("上一筆").await, ["系統暫時無法讀取交易記錄，請稍後再試"]);
    redis.restart();
    works_again(&world).await;
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_redis_allows_bookings_and_explains_edits() {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let url = format!("redis://127.0.0.1:{}/0", wire.port());
    let mut world = World::new(Some(&url), None).await.store_limits("600", "500");
    world.start();
    world.say("午餐🥚 100").await;
    // Longer than any store call may take, and than a probe waits.
    wire.delay_answers(Duration::from_secs(3));
    works_without_redis(&world).await;
    wire.resume();
    works_again(&world).await;
    world.in_order();
}

/// Expects a booked lunch; books a dinner while Redis is down.
async fn works_without_redis(world: &World) {
    let said = world.say("晚餐🥚 200").await;
    assert!(said[0].starts_with("✅ 已記帳 1 筆"), "{said:?}");
    // Several tries, because the machine itself may stall.
    for _ in 0..10 {
        let since = Instant::now();
        assert_eq!(world.say("改金額 5").await, ["系統暫時無法讀取交易記錄，請稍後再試"]);
        if since.elapsed() < Duration::from_secs(2) {
            assert_eq!(world.get("/readyz").0, 503);
            return;
        }
    }
    panic!("no answer came within 2 s\n{}", world.output());
}

async fn works_again(world: &World) {
    wait_for("the bot sees it", TIMEOUT, || (world.get("/readyz").0 == 200).then_some(()));
    let since = Instant::now();
    let said = loop {
        // A stall of the machine also looks like an unavailable store.
        let said = world.say("改金額 250").await;
        if said[0] == "修改成功" {
            break said;
        }
        assert!(since.elapsed() < TIMEOUT, "{said:?}");
    };
    assert!(
        said[1].contains("晚餐🥚"),
        "the last one, and not the one that Redis still had: {said:?}"
    );
    let booked = [("午餐🥚".to_owned(), 100.0), ("晚餐🥚".to_owned(), 200.0)];
    assert_eq!(world.booked().await, booked);
    let (_, metrics) = world.get("/metrics");
    assert!(metrics.contains(r#"kv_operations_total{operation="get",result="error"}"#));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_message_of_somebody_books_nothing() {
    let world = World::started(None).await;
    let standby = events::standby(events::text(USER, "午餐🥚 100"));
    let nobody = events::without_user(events::text(USER, "記帳 午餐🥚 100"));
    let follow = events::follow(USER);
    let mut all = events::every_kind(USER);
    all.extend([standby.clone(), nobody.clone(), follow.clone()]);
    assert_eq!(world.deliver(&all).await, Some(200));
    assert!(world.heard(&follow).await.texts()[0].starts_with("您可以這樣說"));
    assert!(world.heard(&nobody).await.texts()[0].starts_with("無法得知您是誰"));
    world.drained().await;
    let in_standby = standby["replyToken"].as_str();
    assert!(
        world.api.accepted_calls().iter().all(|said| said.reply_token.as_deref() != in_standby)
    );
    assert_eq!(world.booked().await, []);
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_09_edit_in_the_same_webhook_follows_its_booking() {
    let world = World::started(None).await;
    for number in 0..20 {
        let user = format!("Uf00d{number}");
        let both = [events::text(&user, "午餐🥚 100"), events::text(&user, "改金額 120")];
        assert_eq!(world.deliver(&both).await, Some(200));
    }
    world.drained().await;
    let rows = world.rows().await;
    let amended = rows.iter().filter_map(|row| Some(row.amended.as_ref()?.amount));
    assert_eq!(amended.collect::<Vec<_>>(), vec![120.0; 20]);
    world.in_order();
}

#[test]
fn the_demo_is_one_command_without_an_account() {
    let ran = Command::new(env!("CARGO_BIN_EXE_bookkeeping-bot"))
        .arg("--demo")
        .env_remove("LINE_CHANNEL_SECRET")
        .env_remove("LINE_CHANNEL_ACCESS_TOKEN")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    let log = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}\n{log}");
    assert!(!log.contains("午餐") && !log.contains("Uf00d"), "the log names nobody: {log}");
    for line in
        ["使用者  午餐 100 信用卡", "機器人  修改成功", "重送", "帳本", "已撤回  拿鐵 80 TWD"]
    {
        assert!(said.contains(line), "{line} in\n{said}");
    }
}

#[test]
fn wrong_settings_end_the_program_with_a_message_that_names_them() {
    let run = |variable: (&str, &str), flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bookkeeping-bot"));
        command.env("LINE_CHANNEL_SECRET", "s").env("LINE_CHANNEL_ACCESS_TOKEN", "t");
        command.args(["--listen", "127.0.0.1:0", "--store", "memory:"]);
        command.args(["--database", "sqlite:/no/such/ledger.db"]);
        let ran = command.env(variable.0, variable.1).args(flags).output().expect("it starts");
        assert!(!ran.status.success());
        String::from_utf8_lossy(&ran.stderr).into_owned()
    };
    assert!(run(("LAST_TRANSACTION_TTL", "0"), &[]).contains("last-transaction-ttl"));
    assert!(run(("X", ""), &["--utc-offset", "8"]).contains("+08:00"));
    assert!(run(("X", ""), &["--store", "mysql://"]).contains("--store"));
    assert!(run(("X", ""), &[]).contains("--database"));
    let mut nothing = Command::new(env!("CARGO_BIN_EXE_bookkeeping-bot"));
    let ran = nothing.env_remove("LINE_CHANNEL_SECRET").output().expect("it starts");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("--channel-secret"));
}
