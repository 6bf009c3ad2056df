//! The bot answers while Redis is stopped, killed or slow, and locks again when Redis is back.

use std::time::{Duration, Instant};

use example_weather_bot::simulated_weather::WeatherMode;
use hapax_line::simulator::events;

use crate::world::{BUSY, Plan, USER, World, home};

/// Uses the default limits, so that an outage is noticed. (No test here asserts that a healthy
/// service is fast.)
async fn hurried(wired: bool) -> World {
    let slack = [("DATABASE_TIMEOUT_MS", "60000"), ("WEATHER_TIMEOUT_MS", "60000")];
    World::with(Plan { hurried: true, environment: &slack, wired, ..Plan::default() }).await
}

/// Asserts an answer within 2 s, with ten tries because the machine itself may stall.
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

/// Asserts that every question is answered, and that nothing is locked.
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

/// Repeats a double tap until it costs one lookup: the first tries may precede the reconnect.
async fn locks_work_again(world: &World) {
    for _ in 0..100 {
        world.idle().await;
        world.weather.set(WeatherMode::Holding);
        let (said, lookups) = (world.said().len(), world.weather.lookups());
        world.send(&[home(), home()]).await;
        // Either both taps were admitted, or one was and the other was told to wait.
        let (said, lookups) = (|| world.said().len() - said, || world.weather.lookups() - lookups);
        world.until("both are decided on", async || said() + lookups() >= 2).await;
        let locked = lookups() == 1;
        world.weather.set(WeatherMode::Well);
        let answers = [world.answer().await, world.answer().await];
        if locked {
            assert_eq!(answers[0], BUSY);
            assert!(answers[1].starts_with("📍 台北（臺灣）"));
            return;
        }
    }
    panic!("the lock is not back\n{}", world.log());
}

/// Asserts that the bot answers between `fail` and `repair`, and locks again after it.
async fn survives(world: World, fail: impl FnOnce(&World), repair: impl FnOnce(&World)) {
    assert!(world.ask(events::text(USER, "設定住家 台北🥚")).await.starts_with("✅"));
    fail(&world);
    answers_as_before(&world).await;
    assert_eq!(world.bot.get("/readyz").0, 503);
    repair(&world);
    locks_work_again(&world).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_stopped_and_going_on() {
    survives(hurried(false).await, |world| world.redis.stop(), |world| world.redis.cont()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_and_started_again() {
    survives(hurried(false).await, |world| world.redis.kill(), |world| world.redis.restart()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_slow_and_quick_again() {
    // Longer than the store timeout of one event, and than a probe waits.
    let delay = |world: &World| world.wire.delay_answers(Duration::from_secs(3));
    survives(hurried(true).await, delay, |world| world.wire.resume()).await;
}
