//! Double taps: one tap is handled, the others are told to wait.

use hapax_line::simulator::events;
use serde_json::Value;

use crate::line::bot::Reaction;
use crate::line::gateway::Gateway;
use crate::line::harness::{BUSY, Scene, WAIT_TIMEOUT, exists, lock_key, pttl, text, user};
use crate::line::monitor::Monitor;
use crate::support::store::{TestStore, tests_on_stores};

/// On any store: the second tap is told to wait, and after the release the next one is handled.
async fn a_double_tap(store: TestStore) {
    let scene = Scene::on(store).await;
    let gateway = scene.gateway().long_locks().start();
    scene.bot.does(|call| match call.event["source"]["userId"] == user(1) {
        true => Reaction::Hold(200),
        false => Reaction::Reply("晴"),
    });
    let (first, second) = (text(&user(1)), text(&user(1)));
    scene.send_until_begun(&gateway, std::slice::from_ref(&first), 1).await;
    scene.send_until_told(&gateway, std::slice::from_ref(&second), 1).await;
    assert_eq!(scene.times_told(&second), 1);
    assert_eq!(scene.line.accepted_calls()[0].texts(), [BUSY]);
    // Other users do not wait, and the bot's reply arrives.
    let other = text(&user(2));
    gateway.send(std::slice::from_ref(&other)).await;
    scene.bot.ended(1);
    let said = scene.line.accepted_calls().pop().expect("a reply");
    assert_eq!(said.texts(), ["晴"]);
    assert_eq!(said.reply_token.as_deref(), other["replyToken"].as_str());
    scene.finish(&gateway, 1);
    let third = text(&user(1));
    scene.send_until_begun(&gateway, std::slice::from_ref(&third), 3).await;
    scene.finish(&gateway, 1);
    let calls = scene.bot.calls();
    assert!(calls[0].is(&first) && calls[2].is(&third), "{calls:?}");
    assert_eq!((calls.len(), scene.told().len()), (3, 1));
    assert!(calls.iter().all(|call| call.attempt == 1 && call.ended));
    assert!(calls[2].fence > calls[0].fence, "the fence grows with every turn of a user");
    gateway.stop();
}

tests_on_stores! {
    a_double_tap;
    double_tap_is_handled_once_on_redis on redis,
    double_tap_is_handled_once_on_sqlite on sqlite,
    double_tap_is_handled_once_on_memory on memory,
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_is_one_set_nx_ex_and_gone_after_the_work() {
    let (scene, gateway) = Scene::with_long_locks().await;
    let (monitor, key) = (Monitor::of(scene.redis()), lock_key(&user(1)));
    scene.bot.holds();
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    assert_eq!(scene.redis().cli(&["KEYS", "processing:*"]), key, "this key and no other");
    assert_eq!(scene.redis().cli(&["TYPE", &key]), "string");
    let left = pttl(scene.redis(), &key);
    assert!(left > 0 && left <= 300_000, "{left}");
    scene.bot.let_go(1);
    exists(scene.redis(), &key, false);
    gateway.idle();
    gateway.counts("processing_lock_release_total", &["status=\"released\""], 1.0);
    monitor.catch_up(scene.redis());
    let sets: Vec<_> =
        monitor.with(&format!("\"{key}\"")).into_iter().filter(|line| is_set(line)).collect();
    assert_eq!(sets.len(), 1, "{sets:?}");
    assert!(sets[0].contains("\"NX\" \"EX\" \"300\""), "{sets:?}");
}

/// Whether a line of `MONITOR` is a `SET`, including one inside a script, but not the call of that
/// script.
pub(crate) fn is_set(line: &str) -> bool {
    line.to_uppercase().contains("] \"SET\" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_value_of_a_foreign_writer_counts_as_held() {
    let (scene, gateway) = Scene::started().await;
    for (number, value) in [(1, "1"), (2, ""), (3, "hapax1 but not really")] {
        scene.redis().cli(&["SET", &lock_key(&user(number)), value, "EX", "300", "NX"]);
        scene.send_until_told(&gateway, &[text(&user(number))], number as usize).await;
    }
    gateway.idle();
    assert!(scene.bot.calls().is_empty());
    for (number, value) in [(1, "1"), (2, ""), (3, "hapax1 but not really")] {
        let kept = scene.redis().cli(&["GET", &lock_key(&user(number))]);
        assert_eq!(kept, value, "not ours to change");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hole_1_release_leaves_a_successors_lock_alone() {
    let (scene, gateway) = Scene::started().await;
    let key = lock_key(&user(1));
    scene.bot.holds();
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    scene.redis().cli(&["SET", &key, "somebody else", "EX", "300"]);
    scene.bot.let_go(1);
    gateway.counts("processing_lock_release_total", &["status=\"lost\""], 1.0);
    gateway.idle();
    assert_eq!(scene.redis().cli(&["GET", &key]), "somebody else");
    assert!(pttl(scene.redis(), &key) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_location_and_postback_are_locked_and_nothing_else() {
    let (scene, gateway) = Scene::with_held_locks().await;
    let who = user(1);
    scene.send_until_begun(&gateway, &[text(&who)], 1).await;
    let locked = [
        text(&who),
        events::location(&who, "臺北車站🥚", 25.0478, 121.517),
        events::postback(&who, "action=weather&type=home&note=🥚"),
    ];
    scene.send_until_told(&gateway, &locked, 3).await;
    let is_locked = |event: &Value| {
        event["type"] == "postback"
            || event["message"]["type"] == "text"
            || event["message"]["type"] == "location"
    };
    let others: Vec<_> =
        events::every_kind(&who).into_iter().filter(|event| !is_locked(event)).collect();
    assert!(others.len() > 10);
    // Unlocked events follow one another, and none waits for the locked one, which the bot still holds.
    scene.bot.does(|_| Reaction::Answer(200));
    let calls = scene.send_until_begun(&gateway, &others, 1 + others.len()).await;
    for event in others {
        assert!(calls.iter().any(|call| call.is(&event)), "{event} is with the bot, too");
    }
    scene.finish(&gateway, calls.len());
    assert_eq!((scene.bot.calls().len(), scene.told().len()), (calls.len(), 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn event_without_user_passes_with_anonymous_warning() {
    let (scene, gateway) = Scene::started().await;
    scene.bot.holds();
    let events = [events::without_user(text(&user(1))), events::without_user(text(&user(2)))];
    scene.send_until_begun(&gateway, &events, 2).await;
    assert_eq!(scene.redis().cli(&["KEYS", "processing:*"]), "");
    assert_eq!(warnings(&gateway), 2);
    scene.finish(&gateway, 2);
    assert!(scene.told().is_empty());
}

/// The warnings about events without a user.
fn warnings(gateway: &Gateway) -> usize {
    let warned =
        |line: &Value| line["level"] == "WARN" && line.to_string().to_lowercase().contains("user");
    hapax_testkit::wait_for("a warning", WAIT_TIMEOUT, || {
        Some(gateway.log_lines().iter().filter(|line| warned(line)).count()).filter(|n| *n > 1)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_can_be_turned_off_by_the_original_variable() {
    let scene = Scene::on_redis().await;
    let gateway = scene.gateway().env("PROCESSING_LOCK_ENABLED", "false").start();
    scene.bot.holds();
    // The second event waits for the first, and nobody is told to wait.
    scene.send_until_begun(&gateway, &[text(&user(1)), text(&user(1))], 1).await;
    assert_eq!(scene.redis().cli(&["KEYS", "processing:*"]), "");
    scene.finish(&gateway, 2);
    assert_eq!(scene.bot.calls().len(), 2);
    assert!(scene.line.accepted_calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn line_store_defaults_to_redis_url() {
    let scene = Scene::on_redis().await;
    let told = scene.gateway().store(None).env("REDIS_URL", &scene.redis().url());
    let gateway = told.long_locks().start();
    scene.bot.holds();
    gateway.send(&[text(&user(1))]).await;
    exists(scene.redis(), &lock_key(&user(1)), true);
    scene.finish(&gateway, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_taps_over_two_gateways_run_one_and_busy_49() {
    let scene = Scene::on_redis().await;
    let gateways = [(); 2].map(|()| scene.gateway().long_locks().start());
    scene.bot.holds();
    for round in 1..=2 {
        let taps = (0..50).map(|tap| {
            let gateway = &gateways[tap % 2];
            let tap = events::postback(&user(1), "action=weather&type=home&note=🥚");
            async move { gateway.send(&[tap]).await }
        });
        futures_util::future::join_all(taps).await;
        scene.bot.begun(round);
        scene.told_in_all(49 * round);
        assert_eq!(scene.bot.calls().len(), round);
        scene.bot.let_go(1);
        exists(scene.redis(), &lock_key(&user(1)), false);
        gateways[0].idle();
    }
    assert_eq!(scene.bot.calls().len(), 2);
    let acquired = |gateway: &Gateway| {
        gateway.metric("processing_lock_acquire_total", &["status=\"acquired\""])
    };
    let missed = |gateway: &Gateway| gateway.metric("processing_lock_miss_total", &[]);
    assert_eq!(gateways.iter().map(acquired).sum::<f64>(), 2.0);
    assert_eq!(gateways.iter().map(missed).sum::<f64>(), 98.0);
}
