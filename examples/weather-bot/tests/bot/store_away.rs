//! Redis stopped, killed or slow: the bot answers as before. Back again: locks work.

use std::time::{Duration, Instant};

use example_weather_bot::simulated_weather::Mood;
use hapax_line::simulator::events;
use serde_json::Value;

use crate::world::{Plan, USER, World};

const BUSY: &str = "⏳ 正在為您查詢天氣，請稍候...";

fn home() -> Value {
    events::postback(USER, "action=weather&type=home")
}

/// With the limits that users have: what is away is noticed. (Nothing here asserts that something
/// which is there is quick.)
async fn hurried() -> World {
    hurried_with(Plan::default()).await
}

async fn hurried_with(plan: Plan<'_>) -> World {
    let slack = [("DATABASE_TIMEOUT_MS", "60000"), ("WEATHER_TIMEOUT_MS", "60000")];
    let world = World::with(Plan { hurried: true, environment: &slack, ..plan }).await;
    assert!(world.ask(events::text(USER, "設定住家 台北🥚")).await.starts_with("✅"));
    world
}

/// Within 2 s. A machine that stalls meanwhile is not the bot's fault, so there are ten tries.
async fn answers_in_time(world: &World) {
    for _ in 0..10 {
        let since = Instant::now();
        world.send(&[home()]).await;
        assert!(world.answer().await.starts_with("📍 台北（臺灣）"));
        if since.elapsed() < Duration::from_secs(2) {
            return;
        }
    }
    panic!("no answer came within 2 s\n{}", world.log());
}

/// Every question gets its answer, and nobody is locked.
async fn answers_as_before(world: &World) {
    answers_in_time(world).await;
    answers_in_time(world).await;
    world.send(&[events::text(USER, "新竹🥚")]).await;
    assert!(world.answer().await.starts_with("📍 新竹（臺灣）"));
    world.send(&[events::postback(USER, "action=recent_queries")]).await;
    assert!(world.answer().await.starts_with("🗒 最近查詢：\n1. 新竹"));
    world.send(&[events::follow(USER)]).await;
    assert!(world.answer().await.starts_with("👋 您好"));
}

/// Until a double tap costs one lookup: what the first ones meet may not be back yet.
async fn locks_work_again(world: &World) {
    for _ in 0..100 {
        world.idle().await;
        world.weather.set(Mood::Holding);
        let (said, lookups) = (world.said().len(), world.weather.lookups());
        world.send(&[home(), home()]).await;
        // Either both were admitted, or one was and the other is told to wait.
        let (said, lookups) = (|| world.said().len() - said, || world.weather.lookups() - lookups);
        world.until("both are decided on", async || said() + lookups() >= 2).await;
        let locked = lookups() == 1;
        world.weather.set(Mood::Well);
        let answers = [world.answer().await, world.answer().await];
        if locked {
            assert_eq!(answers[0], BUSY);
            assert!(answers[1].starts_with("📍 台北（臺灣）"));
            return;
        }
    }
    panic!("the lock is not back\n{}", world.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_stopped_and_going_on() {
    let world = hurried().await;
    world.redis.stop();
    answers_as_before(&world).await;
    assert_eq!(world.get("/readyz").await.0, 503);
    world.redis.cont();
    locks_work_again(&world).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_and_started_again() {
    let world = hurried().await;
    world.redis.kill();
    answers_as_before(&world).await;
    assert_eq!(world.get("/readyz").await.0, 503);
    world.redis.restart();
    locks_work_again(&world).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_slow_and_quick_again() {
    let world = hurried_with(Plan { wired: true, ..Plan::default() }).await;
    // Longer than all calls of an event may take together, and than a probe waits.
    world.wire.delay_answers(Duration::from_secs(3));
    answers_as_before(&world).await;
    assert_eq!(world.get("/readyz").await.0, 503);
    world.wire.resume();
    locks_work_again(&world).await;
    world.end().await;
}
