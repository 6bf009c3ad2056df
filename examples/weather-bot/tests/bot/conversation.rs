//! Every kind of message and postback gets its answer, on SQLite and on PostgreSQL.

use hapax_line::simulator::{ApiEndpoint, events};
use hapax_testkit::Postgres;
use serde_json::Value;

use crate::world::{Plan, USER, World};

const TAIPEI: &str = "📍 台北（臺灣）\n\
    目前：⛅ 局部多雲，27°C，體感 30°C，濕度 78%，風速 12 km/h\n\
    今日：🌦 小陣雨，24～31°C，降雨機率 60%";

/// The postback data of a message's quick reply buttons.
fn buttons(message: &Value) -> Vec<String> {
    let items = message["quickReply"]["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|item| Some(item["action"]["data"].as_str()?.to_owned())).collect()
}

async fn on(database: Option<&str>) {
    let world = World::with(Plan { database, ..Plan::default() }).await;
    let text = |text: &str| events::text(USER, text);
    let tap = |data: &str| events::postback(USER, data);

    assert!(world.ask(events::follow(USER)).await.starts_with("👋 您好"));
    assert!(world.ask(tap("action=recent_queries")).await.starts_with("🗒 還沒有查詢紀錄"));
    assert_eq!(world.ask(text("台北🥚")).await, TAIPEI);
    assert!(world.ask(text("🥚")).await.starts_with("🔍 找不到這個地點"));
    let here = world.ask(events::location(USER, "老家🥚", 25.03, 121.56)).await;
    assert!(here.starts_with("📍 老家🥚\n目前："), "{here}");
    assert_eq!(world.weather.asked(), [(25.0531, 121.5264), (25.03, 121.56)]);

    let home = world.ask(tap("action=weather&type=home")).await;
    assert!(home.starts_with("🙋 還沒有設定住家"), "{home}");
    assert_eq!(world.ask(text("設定住家 台北🥚")).await, "✅ 已將住家設為：台北（臺灣）");
    assert_eq!(world.ask(tap("action=weather&type=home")).await, TAIPEI);
    assert!(world.ask(text("設定公司 🥚")).await.starts_with("🔍 找不到這個地點"));
    assert!(world.ask(tap("action=weather&type=office")).await.starts_with("🙋 還沒有設定公司"));

    // The quick reply buttons work as labelled.
    world.idle().await;
    world.send(&[text("新竹🥚")]).await;
    let said = world.next().await;
    let keep = buttons(&said.messages[0]);
    assert_eq!(keep.len(), 2, "{keep:?}");
    assert_eq!(world.ask(tap(&keep[1])).await, "✅ 已將公司設為：新竹（臺灣）");
    let office = world.ask(tap("action=weather&type=office")).await;
    assert!(office.starts_with("📍 新竹（臺灣）"), "{office}");
    let settings = world.ask(tap("action=settings")).await;
    assert!(settings.contains("住家：台北（臺灣）\n公司：新竹（臺灣）"), "{settings}");

    // Newest first, each place once.
    let list = "🗒 最近查詢：\n1. 新竹（臺灣）\n2. 台北（臺灣）\n3. 老家🥚";
    world.idle().await;
    world.send(&[tap("action=recent_queries")]).await;
    let said = world.next().await;
    assert_eq!(said.texts(), [list]);
    let again = buttons(&said.messages[0]);
    assert!(world.ask(tap(&again[2])).await.starts_with("📍 老家🥚"));
    let list = world.ask(tap("action=recent_queries")).await;
    assert!(list.starts_with("🗒 最近查詢：\n1. 老家🥚\n2. 新竹（臺灣）"), "{list}");
    let forgotten = world.ask(tap("action=weather&type=recent&query=999999")).await;
    assert!(forgotten.starts_with("🗒 這個地點已不在"), "{forgotten}");

    assert!(world.ask(tap("action=weather&type=current")).await.starts_with("📍 請按下方按鈕"));
    assert!(world.ask(tap("action=other")).await.starts_with("ℹ️ 使用說明"));
    assert!(world.ask(tap("action=dance")).await.starts_with("🤔 這個按鈕"));
    assert!(world.ask(events::sticker(USER)).await.starts_with("ℹ️ 使用說明"));

    // An unfollow deletes the user's data.
    world.send(&[events::unfollow(USER)]).await;
    world.handled("unfollow").await;
    assert!(world.ask(events::follow(USER)).await.starts_with("👋 您好"));
    assert!(world.ask(tap("action=recent_queries")).await.starts_with("🗒 還沒有查詢紀錄"));
    assert!(world.ask(tap("action=weather&type=home")).await.starts_with("🙋 還沒有設定住家"));

    assert!(world.has_shown_loading(), "the animation is shown");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_and_postback_gets_its_answer_on_sqlite() {
    on(None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_and_postback_gets_its_answer_on_postgres() {
    let postgres = Postgres::start();
    on(Some(&postgres.url())).await;
    assert_eq!(postgres.psql("SELECT count(*) FROM users WHERE active"), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_no_name_gets_the_weather_and_nothing_is_kept() {
    let world = World::start().await;
    let nameless = |event| events::without_user(event);
    assert_eq!(world.ask(nameless(events::text(USER, "天氣 台北🥚"))).await, TAIPEI);
    let tap = nameless(events::postback(USER, "action=weather&type=home"));
    assert!(world.ask(tap).await.starts_with("🙏 這裡無法辨識您的帳號"));
    assert!(!world.has_shown_loading(), "a group is shown no animation");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_23_group_chat_is_answered_only_when_addressed() {
    let world = World::start().await;
    let in_group = |text| events::in_group(events::text(USER, text), "Cf00d1");
    world.send(&[in_group("台北🥚")]).await;
    world.handled("text").await;
    assert!(world.line.accepted_calls().is_empty());
    assert_eq!((world.weather.searches(), world.weather.lookups()), (0, 0));
    let mentioned = events::mentioning(in_group("台北🥚"), "bot", "Uf00db07", true);
    assert_eq!(world.ask(mentioned).await, TAIPEI);
    assert_eq!(world.ask(in_group("天氣 台北🥚")).await, TAIPEI);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_standby_nothing_is_said_and_nothing_is_looked_up() {
    let world = World::start().await;
    world.send(&[events::standby(events::text(USER, "台北🥚"))]).await;
    world.handled("text").await;
    assert!(world.line.accepted_calls().is_empty());
    assert_eq!((world.weather.searches(), world.weather.lookups()), (0, 0));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_without_a_reply_token_is_answered_by_a_push() {
    let world = World::start().await;
    let mut event = events::text(USER, "台北🥚");
    event["replyToken"] = "".into();
    world.send(&[event]).await;
    let said = world.next().await;
    assert_eq!((said.endpoint, said.to.as_deref()), (ApiEndpoint::Push, Some(USER)));
    assert_eq!(said.texts(), [TAIPEI]);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_event_passes_and_only_questions_are_answered() {
    let world = World::start().await;
    let all = events::every_kind(USER);
    // The events are of one user, so locked ones would be told to wait; the shipped rules do not
    // lock `settings`.
    world.send(&all).await;
    let handled = async || {
        let (_, text) = world.bot.get("/metrics");
        let done = text.lines().filter(|line| line.starts_with("hapax_line_handled_total"));
        // Exclude failed attempts, which are retried.
        let done = done.filter(|line| !line.contains("failed"));
        done.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum::<usize>()
    };
    world.until("all are handled", async || handled().await == all.len()).await;
    // Answers to text, location, five kinds of chatter, postback and follow.
    assert_eq!(world.said().len(), 9, "{:?}", world.said());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_and_strangers_are_turned_away() {
    let world = World::start().await;
    assert_eq!(world.bot.get("/healthz"), (200, r#"{"alive":true}"#.into()));
    // `/readyz` may fail for a moment on a stalled machine.
    let ready = (200, r#"{"ready":true}"#.to_owned());
    world.until("it is ready", async || world.bot.get("/readyz") == ready).await;
    assert_eq!(world.bot.get("/line/webhook").0, 405);
    let body = format!(r#"{{"destination":"x","events":[{}]}}"#, events::text(USER, "台北🥚"));
    for signature in [None, Some("AAAA"), Some("🥚")] {
        let refused = world.bot.sender.send_raw(body.clone().into(), signature).await;
        assert_eq!(refused.expect("an answer").status, 401);
    }
    world.send(&[]).await;
    assert_eq!(world.weather.searches(), 0);
    world.end().await;
}
