//! The log has the original bot's lines about its store, but without user ids.

use bookkeeping_bot::last::name;
use example_common::bot_process::TIMEOUT;
use hapax_testkit::{Redis, wait_for};

use crate::line::support::{USER, World};

/// Waits for a log line that contains all of these parts.
fn logged(world: &World, parts: &[&str]) {
    wait_for(&format!("{parts:?} in the log"), TIMEOUT, || {
        let output = world.output();
        output.lines().any(|line| parts.iter().all(|part| line.contains(part))).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_log_covers_every_operation_and_names_nobody() {
    let redis = Redis::start();
    let mut world = World::new(Some(&redis.url()), None).await.store_limits("5000", "1000");
    world.start();
    world.say("改金額 5").await;
    logged(&world, &["INFO", "kv get", "found=false"]);
    world.say("午餐🥚 100").await;
    logged(&world, &["INFO", "kv set", "success=true"]);
    world.say("上一筆").await;
    logged(&world, &["INFO", "kv get", "found=true"]);
    world.say("刪除").await;
    logged(&world, &["INFO", "kv delete", "success=true"]);
    // 資料格式錯誤
    redis.cli(&["SET", &name(USER), "no JSON 🥚"]);
    world.say("改金額 5").await;
    logged(&world, &["ERROR", "kv error", "operation=\"get\"", "reason=\"no entry\""]);
    redis.kill();
    world.say("上一筆").await;
    world.say("晚餐🥚 200").await;
    let unreachable = |line: &str| line.contains("kv error") && !line.contains("no entry");
    let lines = || world.output().lines().filter(|line| unreachable(line)).count();
    wait_for("errors of a store that is away", TIMEOUT, || (lines() >= 2).then_some(()));
    world.in_order();
}
