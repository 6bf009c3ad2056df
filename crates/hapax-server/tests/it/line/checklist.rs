//! The checklist and the acceptance lines of the original bot, one by one. A comment notes where
//! hapax does more than the line asks.

use std::collections::HashSet;

use hapax_line::simulator::events;
use hapax_testkit::wait_for;
use serde_json::{Value, json};

use crate::line::bot::Reaction;
use crate::line::harness::{BUSY, Scene, WAIT_TIMEOUT, exists, lock_key, pttl, text, user};
use crate::line::monitor::Monitor;
use crate::line::taps::is_set;

/// Lock key: "Only `userId` makes the key: `processing:user:{userId}`."
#[tokio::test(flavor = "multi_thread")]
async fn lock_key_is_made_of_the_user_id_alone() {
    let (scene, gateway) = Scene::with_held_locks().await;
    let tap = events::postback(&user(7), "action=weather&type=home&note=🥚");
    scene.send_until_begun(&gateway, &[tap], 1).await;
    let keys = scene.redis().cli(&["KEYS", "*processing*"]);
    assert_eq!(keys, format!("processing:user:{}", user(7)));
    scene.finish(&gateway, 1);
}

/// Lock key: "The TTL is 5 seconds (`PROCESSING_LOCK_TIMEOUT_SECONDS=5`)."
#[tokio::test(flavor = "multi_thread")]
async fn lock_ttl_is_five_seconds_unless_the_variable_is_set() {
    let scene = Scene::on_redis().await;
    scene.bot.holds();
    let monitor = Monitor::of(scene.redis());
    for (number, variable, seconds) in [(3, None, 5), (4, Some("5"), 5), (5, Some("60"), 60)] {
        let start = scene.gateway().path(&format!("/{number}"));
        let start = match variable {
            Some(value) => start.env("PROCESSING_LOCK_TIMEOUT_SECONDS", value),
            None => start,
        };
        let gateway = start.start();
        gateway.send(&[text(&user(number))]).await;
        let key = lock_key(&user(number));
        let set = wait_for("the lock is taken", WAIT_TIMEOUT, || {
            monitor.with(&format!("\"{key}\"")).into_iter().find(|line| is_set(line))
        });
        assert!(set.contains(&format!("\"NX\" \"EX\" \"{seconds}\"")), "{set}");
    }
}

/// Commands: "Take the lock with `SET key 1 EX <ttl> NX`; an existing lock must not be
/// overwritten." (The value is the owner's token instead of `1`; any value counts as held.)
#[tokio::test(flavor = "multi_thread")]
async fn lock_is_taken_by_set_nx_and_never_overwritten() {
    let (scene, gateway) = Scene::with_long_locks().await;
    let key = lock_key(&user(1));
    // Taken as the original bot takes it.
    assert_eq!(scene.redis().cli(&["SET", &key, "1", "EX", "300", "NX"]), "OK");
    scene.send_until_told(&gateway, &[text(&user(1))], 1).await;
    gateway.idle();
    assert_eq!(scene.redis().cli(&["GET", &key]), "1");
    scene.redis().cli(&["DEL", &key]);
    // The lock of hapax keeps the original bot out.
    scene.bot.holds();
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    assert_eq!(scene.redis().cli(&["SET", &key, "1", "EX", "5", "NX"]), "");
    scene.finish(&gateway, 1);
}

/// Commands: "Release it in `finally` with `DEL key`, when the work has ended." (hapax deletes only
/// its own lock: a successor's lock stays.)
#[tokio::test(flavor = "multi_thread")]
async fn lock_is_released_when_the_work_ends_or_fails() {
    let scene = Scene::on_redis().await;
    let flags = ["--max-attempts", "1"];
    let start = scene.gateway().flags(&flags).long_locks();
    let gateway = start.start();
    let ways = [Reaction::Answer(200), Reaction::Answer(500), Reaction::Cut];
    for (number, way) in ways.into_iter().enumerate() {
        // A bot that cut the connection is waited for, and gets the event again.
        scene.bot.does(move |call| if call.attempt == 1 { way } else { Reaction::Answer(200) });
        scene.send_until_begun(&gateway, &[text(&user(1))], number + 1).await;
        exists(scene.redis(), &lock_key(&user(1)), false);
        gateway.idle();
    }
    assert!(scene.told().is_empty());
}

/// Scope: "Only Text, Location and Postback are locked."
#[tokio::test(flavor = "multi_thread")]
async fn text_location_and_postback_are_locked() {
    let (scene, gateway) = Scene::with_held_locks().await;
    let locked = [
        text(&user(1)),
        events::location(&user(2), "臺北車站🥚", 25.0478, 121.517),
        events::postback(&user(3), "action=weather&type=office&note=🥚"),
    ];
    gateway.send(&locked).await;
    scene.send_until_begun(&gateway, &[events::sticker(&user(4))], 4).await;
    for (number, held) in [(1, "1"), (2, "1"), (3, "1"), (4, "0")] {
        assert_eq!(scene.redis().cli(&["EXISTS", &lock_key(&user(number))]), held, "{number}");
    }
    scene.finish(&gateway, 4);
}

/// Scope: "Follow and Unfollow are not." Also: "The flow of Follow and Unfollow is not affected."
#[tokio::test(flavor = "multi_thread")]
async fn line_follow_and_unfollow_are_not_locked() {
    let (scene, gateway) = Scene::started().await;
    scene.redis().cli(&["SET", &lock_key(&user(1)), "1", "EX", "300"]);
    scene.bot.does(|_| Reaction::Answer(200));
    let events = [events::follow(&user(1)), events::unfollow(&user(1)), events::follow(&user(1))];
    scene.send_until_handled(&gateway, &events, 3).await;
    assert!(scene.line.accepted_calls().is_empty());
}

/// Failure: "Where Redis cannot be reached or fails, the event passes (no lock)." And: "There is no
/// fallback in memory." (A timeout makes a Redis that hangs count as failed.)
#[tokio::test(flavor = "multi_thread")]
async fn line_without_redis_events_pass_unlocked() {
    let scene = Scene::on_redis().await;
    let gateway = scene.gateway().impatient().flags(&["--handle-timeout", "300s"]).start();
    scene.redis().kill();
    scene.bot.holds();
    // Both events are handled at the same time.
    let calls = scene.send_until_begun(&gateway, &[text(&user(1)), text(&user(1))], 2).await;
    assert!(calls.iter().all(|call| !call.ended && call.fence.is_none()));
    scene.bot.let_go(2);
    scene.bot.ended(2);
    assert!(scene.line.accepted_calls().is_empty());
    assert_eq!(gateway.metric("hapax_line_events_total", &["result=\"unprotected\""]), 2.0);
}

/// Texts: "The text where the lock is held is `⏳ 正在為您查詢天氣，請稍候...`." And: "No i18n."
#[tokio::test(flavor = "multi_thread")]
async fn busy_text_is_the_same_for_all_letter_for_letter() {
    let (scene, gateway) = Scene::started().await;
    scene.redis().cli(&["SET", &lock_key(&user(1)), "1", "EX", "300"]);
    let mut english = text(&user(1));
    english["source"]["language"] = "en".into();
    scene.send_until_told(&gateway, &[text(&user(1)), english], 2).await;
    gateway.idle();
    let text = json!({ "type": "text", "text": "⏳ 正在為您查詢天氣，請稍候..." });
    assert!(scene.line.accepted_calls().iter().all(|said| said.messages == [text.clone()]));
    assert_eq!(BUSY, hapax_line::BUSY_TEXT);
}

/// The log lines of one event, by its correlation id.
fn story(lines: &[Value], correlation: &Value) -> Vec<String> {
    let of_it = lines.iter().filter(|line| field(line, "correlation") == Some(correlation));
    of_it.filter_map(|line| field(line, "message")?.as_str().map(str::to_owned)).collect()
}

fn field<'a>(line: &'a Value, name: &str) -> Option<&'a Value> {
    line.get(name).or_else(|| line["spans"][0].get(name))
}

/// Privacy: "Logs carry nothing personal, `userId` included; only acquired, missed, released." (The
/// output of every gateway in these tests is searched when the gateway ends.) And: "A correlation
/// id that is random and short-lived may be added."
#[tokio::test(flavor = "multi_thread")]
async fn lock_log_joins_acquired_missed_released_by_random_id() {
    let (scene, gateway) = Scene::with_held_locks().await;
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    scene.send_until_told(&gateway, &[text(&user(1))], 1).await;
    scene.finish(&gateway, 1);
    let stories = wait_for("both stories are told", WAIT_TIMEOUT, || {
        let lines = gateway.log_lines();
        let ids: HashSet<_> = lines.iter().filter_map(|line| field(line, "correlation")).collect();
        let stories: Vec<_> = ids.into_iter().map(|id| story(&lines, id)).collect();
        let told = |word: &str| stories.iter().flatten().any(|line| line == word);
        (told("released") && told("missed")).then_some(stories)
    });
    assert_eq!(stories.len(), 2, "{stories:?}");
    let has = |story: &Vec<String>, word: &str| story.iter().any(|line| line == word);
    let acquired = stories.iter().filter(|story| has(story, "acquired") && has(story, "released"));
    assert_eq!(acquired.count(), 1, "{stories:?}");
    let missed = stories.iter().filter(|story| has(story, "missed") && !has(story, "acquired"));
    assert_eq!(missed.count(), 1, "{stories:?}");
}

/// Observability: "`processing_lock_acquire_total`, `processing_lock_miss_total`,
/// `processing_lock_release_total`, `processing_duration_seconds`." And: "No metric has `userId` as
/// a label."
#[tokio::test(flavor = "multi_thread")]
async fn lock_metrics_are_labelled_by_event_type_and_result() {
    let (scene, gateway) = Scene::with_held_locks().await;
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    scene
        .send_until_told(&gateway, &[events::postback(&user(1), "action=weather&note=🥚")], 1)
        .await;
    scene.finish(&gateway, 1);
    gateway.counts("processing_lock_release_total", &[], 1.0);
    assert_eq!(gateway.metric("processing_lock_acquire_total", &["acquired", "text"]), 1.0);
    assert_eq!(gateway.metric("processing_lock_acquire_total", &["held", "postback"]), 1.0);
    assert_eq!(gateway.metric("processing_lock_miss_total", &["postback"]), 1.0);
    assert_eq!(gateway.metric("processing_lock_release_total", &["released", "text"]), 1.0);
    assert_eq!(gateway.metric("processing_duration_seconds_count", &["text"]), 1.0);
    let metrics = gateway.get("/metrics").1;
    let ours = |line: &&str| line.starts_with("processing_") || line.starts_with("hapax_line_");
    for line in metrics.lines().filter(ours) {
        // API calls (a reply, a push, an animation) are not events, so their metric has the label
        // `what`.
        let of_sent = if line.starts_with("hapax_line_sent_total") { "what" } else { "result" };
        let known = ["event_type", "source_type", "status", "result", of_sent, "le"];
        let labels = line.split_once('{').map_or("", |(_, rest)| rest);
        let names =
            labels.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name);
        for name in names {
            assert!(known.contains(&name), "{name} in {line}");
        }
    }
}

/// Acceptance: "The same key: the first try succeeds; the next one at once fails; after the TTL one
/// succeeds again." And: "When it is done or the time is over, the user can ask again."
#[tokio::test(flavor = "multi_thread")]
async fn lock_is_taken_once_and_again_after_its_ttl() {
    let (scene, gateway) = Scene::with_long_locks().await;
    let key = lock_key(&user(1));
    scene.bot.holds();
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    scene.send_until_told(&gateway, &[text(&user(1))], 1).await;
    // The TTL runs out.
    scene.redis().cli(&["PEXPIRE", &key, "50"]);
    exists(scene.redis(), &key, false);
    scene.send_until_begun(&gateway, &[text(&user(1))], 2).await;
    scene.finish(&gateway, 2);
    scene.send_until_begun(&gateway, &[text(&user(1))], 3).await;
    scene.finish(&gateway, 1);
    assert_eq!(scene.told().len(), 1);
}

/// Acceptance: "The key is right for every type of `source`; without an id there is none."
#[tokio::test(flavor = "multi_thread")]
async fn lock_key_is_right_for_every_source() {
    let (scene, gateway) = Scene::with_held_locks().await;
    let id = |letter: &str, number| user(number).replacen('U', letter, 1);
    let sources = [
        (json!({ "type": "user", "userId": user(1) }), true),
        (json!({ "type": "group", "groupId": id("C", 2), "userId": user(2) }), true),
        (json!({ "type": "room", "roomId": id("R", 3), "userId": user(3) }), true),
        (json!({ "type": "group", "groupId": id("C", 4) }), false),
        (json!({ "type": "room", "roomId": id("R", 5) }), false),
        (Value::Null, false),
    ];
    for (calls, (source, locked)) in sources.into_iter().enumerate() {
        let mut event = text(&user(9));
        match source.is_null() {
            true => drop(event.as_object_mut().expect("an object").remove("source")),
            false => event["source"] = source.clone(),
        }
        scene.send_until_begun(&gateway, &[event], calls + 1).await;
        let keys = scene.redis().cli(&["KEYS", "processing:*"]);
        let key = source["userId"].as_str().map_or(String::new(), lock_key);
        assert_eq!(keys, key, "{source}");
        assert_eq!(locked, pttl(scene.redis(), &key) > 0);
        scene.finish(&gateway, 1);
    }
}

/// Acceptance: "Of events one after the other the first is worked on, the second is told to wait."
/// And: "While one is at work, only the first is handled and all others are told."
#[tokio::test(flavor = "multi_thread")]
async fn lock_holder_at_work_makes_all_others_wait() {
    let (scene, gateway) = Scene::with_held_locks().await;
    let first = text(&user(1));
    scene.send_until_begun(&gateway, std::slice::from_ref(&first), 1).await;
    for told in 1..=5 {
        scene.send_until_told(&gateway, &[text(&user(1))], told).await;
    }
    assert_eq!(scene.bot.calls().len(), 1);
    assert!(scene.bot.calls()[0].is(&first));
    scene.finish(&gateway, 1);
}

/// Acceptance: "What worked before (places, replies, the way of postbacks) is not affected."
#[tokio::test(flavor = "multi_thread")]
async fn bot_gets_every_event_type_verbatim_and_replies() {
    let (scene, gateway) = Scene::started().await;
    scene.bot.does(|call| match call.event["replyToken"].is_string() {
        true => Reaction::Reply("好"),
        false => Reaction::Answer(200),
    });
    // Each event has a user of its own, so that none waits for another.
    let all = events::every_kind(&user(0)).len();
    for number in 0..all {
        gateway.send(&[events::every_kind(&user(number as u32)).swap_remove(number)]).await;
    }
    scene.bot.ended(all);
    gateway.idle();
    let calls = scene.bot.calls();
    assert_eq!(calls.len(), all);
    let answerable = calls.iter().filter(|call| call.event["replyToken"].is_string()).count();
    assert_eq!(scene.line.accepted_calls().len(), answerable);
    assert!(scene.told().is_empty());
}
