//! Outages of the weather service or the users' database: a friendly text, and the rest works.

use example_weather_bot::simulated_weather::WeatherMode;
use hapax_line::simulator::events;
use hapax_testkit::Postgres;

use crate::world::{Plan, USER, World, home};

const AWAY: &str = "😥 天氣服務暫時無法使用，請稍後再試。";

#[tokio::test(flavor = "multi_thread")]
async fn a_weather_service_that_is_down_or_says_nonsense_is_told_kindly() {
    let world = World::start().await;
    assert!(world.ask(events::text(USER, "設定住家 台北🥚")).await.starts_with("✅"));
    for mode in [
        WeatherMode::Status(500),
        WeatherMode::Status(429),
        WeatherMode::Cut,
        WeatherMode::Say("<html>🥚</html>".into()),
        WeatherMode::Say("{}".into()),
        WeatherMode::Say(r#"{"results":"台北"}"#.into()),
    ] {
        world.weather.set(mode.clone());
        assert_eq!(world.ask(home()).await, AWAY, "{mode:?}");
        let map = events::location(USER, "老家🥚", 25.03, 121.56);
        assert_eq!(world.ask(map).await, AWAY, "{mode:?}");
        let nothing_found = mode == WeatherMode::Say("{}".into());
        let text = world.ask(events::text(USER, "台北🥚")).await;
        assert!(if nothing_found { text.starts_with("🔍") } else { text == AWAY }, "{mode:?}");
        let set = world.ask(events::text(USER, "設定公司 新竹🥚")).await;
        assert!(if nothing_found { set.starts_with("🔍") } else { set == AWAY }, "{mode:?}");
    }
    world.weather.set(WeatherMode::Well);
    assert!(world.ask(home()).await.starts_with("📍 台北（臺灣）"), "as soon as it is back");
    assert!(world.metric(r#"weather_lookups_total{result="nonsense"}"#).await > 0);
    assert!(world.metric(r#"weather_lookups_total{result="away"}"#).await > 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_weather_service_that_hangs_is_given_up() {
    let short = [("WEATHER_TIMEOUT_MS", "200")];
    let world = World::with(Plan { environment: &short, ..Plan::default() }).await;
    world.weather.set(WeatherMode::Hang);
    assert_eq!(world.ask(events::text(USER, "台北🥚")).await, AWAY);
    let map = events::location(USER, "老家🥚", 25.03, 121.56);
    assert_eq!(world.ask(map).await, AWAY);
    assert_eq!(world.metric(r#"weather_lookups_total{result="slow"}"#).await, 2);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_users_database_there_is_still_weather() {
    let postgres = Postgres::start();
    let url = postgres.url();
    let short = [("DATABASE_TIMEOUT_MS", "1000")];
    let world = World::with(Plan { database: Some(&url), environment: &short, ..Plan::default() });
    let world = world.await;
    postgres.stop();
    assert!(world.ask(events::text(USER, "台北🥚")).await.starts_with("📍 台北（臺灣）"));
    for data in ["action=weather&type=home", "action=recent_queries", "action=settings"] {
        let answer = world.ask(events::postback(USER, data)).await;
        assert!(answer.starts_with("😥 暫時無法讀取您的資料"), "{data}");
    }
    let set = world.ask(events::text(USER, "設定住家 台北🥚")).await;
    assert!(set.starts_with("😥 設定暫時無法儲存"), "{set}");
    assert_eq!(world.bot.get("/readyz").0, 503);

    // A follow is retried until it is recorded.
    world.send(&[events::follow(USER)]).await;
    let failed = r#"hapax_line_handled_total{event_type="follow",result="failed"}"#;
    world.until("it was tried", async || world.metric(failed).await >= 1).await;
    postgres.cont();
    assert!(world.answer().await.starts_with("👋 您好"));
    assert_eq!(postgres.psql("SELECT count(*) FROM users WHERE active"), "1");
    world.end().await;
}
