//! Two taps cost one lookup. The forecast is held until the other tap is answered, so that no test
//! depends on timing.

use example_common::bot_process::send;
use example_weather_bot::simulated_weather::WeatherMode;
use hapax_line::simulator::events;

use crate::world::{BUSY, Plan, USER, World, home};

const OTHER: &str = "Uf00d0000000000000000000000000002";

/// Sets a home for both users, then holds the forecasts.
async fn at_home(plan: Plan<'_>) -> World {
    let world = World::with(plan).await;
    for user in [USER, OTHER] {
        assert!(world.ask(events::text(user, "設定住家 台北🥚")).await.starts_with("✅"));
    }
    world.idle().await;
    world.weather.set(WeatherMode::Holding);
    world
}

async fn lookups(world: &World, count: usize) {
    world.until("the lookups are asked for", async || world.weather.lookups() == count).await;
}

async fn released(world: &World) {
    world.weather.set(WeatherMode::Well);
    assert!(world.answer().await.starts_with("📍 台北（臺灣）"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_taps_at_once_cost_one_lookup_and_one_is_told_to_wait() {
    let world = at_home(Plan::default()).await;
    for round in 1..=3 {
        let (one, two) = ([home()], [home()]);
        tokio::join!(world.send(&one), world.send(&two));
        assert_eq!(world.answer().await, BUSY);
        released(&world).await;
        assert_eq!(world.weather.lookups(), round, "and again after the release");
        world.idle().await;
        world.weather.set(WeatherMode::Holding);
    }
    assert_eq!(world.said().len(), 2 + 3 * 2);
    world.weather.set(WeatherMode::Well);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_webhook_with_two_taps_costs_one_lookup() {
    let world = at_home(Plan::default()).await;
    let (first, second) = (home(), home());
    world.send(&[first.clone(), second.clone()]).await;
    let said = world.next().await;
    assert_eq!(said.texts(), [BUSY]);
    assert_eq!(said.reply_token.as_deref(), second["replyToken"].as_str(), "the first goes on");
    released(&world).await;
    assert_eq!(world.weather.lookups(), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_costs_no_lookup_and_other_users_are_not_kept_waiting() {
    let world = at_home(Plan::default()).await;
    world.send(&[home()]).await;
    lookups(&world, 1).await;
    // The lock is held, but these events do not take it.
    for (data, answer) in [
        ("action=weather&type=current", "📍 請按下方按鈕"),
        ("action=settings", "⚙️ 目前設定"),
        ("action=other", "ℹ️ 使用說明"),
    ] {
        world.send(&[events::postback(USER, data)]).await;
        assert!(world.answer().await.starts_with(answer), "{data}");
    }
    world.send(&[events::text(USER, "🥚")]).await;
    assert!(world.answer().await.starts_with("🔍 找不到這個地點"));
    world.send(&[events::follow(USER)]).await;
    assert!(world.answer().await.starts_with("👋 您好"));
    world.send(&[events::unfollow(USER)]).await;
    world.handled("unfollow").await;
    // These events take the lock.
    world.send(&[events::postback(USER, "action=recent_queries")]).await;
    assert_eq!(world.answer().await, BUSY);
    // Another user has a separate lock.
    world.send(&[events::postback(OTHER, "action=weather&type=home")]).await;
    lookups(&world, 2).await;
    assert_eq!(world.redis.cli(&["EXISTS", &format!("processing:user:{USER}")]), "1");
    assert_eq!(world.redis.cli(&["EXISTS", &format!("processing:user:{OTHER}")]), "1");
    released(&world).await;
    assert!(world.answer().await.starts_with("📍 台北（臺灣）"));
    assert_eq!(world.weather.lookups(), 2);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shipped_rules_lock_neither_names_nor_map_places() {
    let world = at_home(Plan::default()).await;
    let map = events::location(USER, "台北（臺灣）", 25.05, 121.53);
    world.send(&[events::text(USER, "台北🥚"), events::text(USER, "台北 🥚"), map]).await;
    // The events follow one another, and no user is told to wait.
    lookups(&world, 1).await;
    released(&world).await;
    for _ in 0..2 {
        assert!(world.answer().await.starts_with("📍 台北（臺灣）"));
    }
    assert_eq!(world.weather.lookups(), 3);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_may_lock_every_question() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules/default.toml");
    let world = at_home(Plan { flags: &["--rules", rules], ..Plan::default() }).await;
    world.send(&[events::text(USER, "台北🥚")]).await;
    lookups(&world, 1).await;
    let map = events::location(USER, "老家🥚", 25.05, 121.53);
    for question in [events::text(USER, "新竹🥚"), map, events::postback(USER, "action=settings")]
    {
        world.send(&[question]).await;
        assert_eq!(world.answer().await, BUSY);
    }
    released(&world).await;
    assert_eq!(world.weather.lookups(), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_can_be_switched_off() {
    let off = [("PROCESSING_LOCK_ENABLED", "false")];
    let world = at_home(Plan { environment: &off, ..Plan::default() }).await;
    world.send(&[home(), home()]).await;
    // The second follows the first, and nobody is told to wait.
    lookups(&world, 1).await;
    released(&world).await;
    assert!(world.answer().await.starts_with("📍 台北（臺灣）"));
    assert_eq!(world.weather.lookups(), 2);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_hand_is_answered_before_the_bot_ends() {
    let world = at_home(Plan::default()).await;
    world.send(&[home()]).await;
    lookups(&world, 1).await;
    world.bot.terminate();
    world
        .until("it takes nothing more", async || send(&world.bot.sender, &[]).await.is_err())
        .await;
    released(&world).await;
    assert!(world.bot.ended().success(), "{}", world.log());
    assert_eq!(world.redis.cli(&["KEYS", "processing:user:*"]), "");
}
