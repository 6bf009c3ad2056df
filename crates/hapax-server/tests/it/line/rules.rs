//! Lock rules on a running gateway.

use hapax_line::simulator::events;
use hapax_testkit::wait_for;

use crate::line::harness::{PATIENCE, Scene, eventually, exists, lock_key, pttl, text, user};

#[tokio::test(flavor = "multi_thread")]
async fn throttle_window_outlasts_finished_work() {
    let scene = Scene::on_redis().await;
    let rules = "[[rule]]\nevent = \"postback\"\nguard = \"throttle\"\nttl = \"300s\"";
    let gateway = scene.gateway().rules(rules).start();
    let (key, tap) = (lock_key(&user(1)), || events::postback(&user(1), "action=weather&note=🥚"));
    gateway.send(&[tap()]).await;
    scene.bot.ended(1);
    gateway.idle();
    let left = pttl(scene.redis(), &key);
    assert!(left > 0 && left <= 300_000, "{left}");
    gateway.send(&[tap()]).await;
    scene.told_in_all(1);
    // Text messages have no rule, so they are not locked.
    gateway.send(&[text(&user(1))]).await;
    scene.bot.ended(2);
    gateway.idle();
    assert!(pttl(scene.redis(), &key) <= left, "nothing made the window longer");
    // The window ends.
    scene.redis().cli(&["PEXPIRE", &key, "1"]);
    exists(scene.redis(), &key, false);
    gateway.send(&[tap()]).await;
    scene.bot.ended(3);
    gateway.idle();
    assert_eq!(scene.told().len(), 1);
    gateway.counts("processing_lock_release_total", &["status=\"kept\""], 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn throttle_window_of_one_second_ends_by_itself() {
    let scene = Scene::on_redis().await;
    let rules = "[[rule]]\nevent = \"postback\"\nguard = \"throttle\"";
    let gateway = scene.gateway().rules(rules).start();
    for taps in 1..=2 {
        gateway.send(&[events::postback(&user(1), "action=recent_queries&note=🥚")]).await;
        scene.bot.ended(taps);
        gateway.idle();
        assert!(pttl(scene.redis(), &lock_key(&user(1))) <= 1000);
        exists(scene.redis(), &lock_key(&user(1)), false);
    }
    assert!(scene.told().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn hole_2_renewed_lock_is_held_while_the_work_lasts() {
    let scene = Scene::on_redis().await;
    // A TTL long enough for a slow machine to renew it, and short enough to see the renewal.
    let rules = "[[rule]]\nevent = \"text\"\nguard = \"mutex\"\nttl = \"15s\"\nrenew = true";
    let gateway = scene.gateway().rules(rules).start();
    let key = lock_key(&user(1));
    scene.bot.holds();
    gateway.send(&[text(&user(1))]).await;
    scene.bot.begun(1);
    let mut least = pttl(scene.redis(), &key);
    wait_for("it is renewed", PATIENCE, || {
        let left = pttl(scene.redis(), &key);
        assert!(left > 0, "it ran out while the bot was at work");
        least = least.min(left);
        (left > least + 500).then_some(())
    });
    gateway.send(&[text(&user(1))]).await;
    scene.told_in_all(1);
    scene.bot.let_go(1);
    exists(scene.redis(), &key, false);
    gateway.idle();
    assert_eq!(scene.bot.calls().len(), 1);
}

/// The 5 s of the original bot are a ceiling, however long the work takes.
#[tokio::test(flavor = "multi_thread")]
async fn hole_2_fence_tells_work_that_outlived_its_lock() {
    let scene = Scene::on_redis().await;
    let gateway = scene.gateway().env("PROCESSING_LOCK_TIMEOUT_SECONDS", "1").start();
    let key = lock_key(&user(1));
    scene.bot.holds();
    gateway.send(&[text(&user(1))]).await;
    scene.bot.begun(1);
    exists(scene.redis(), &key, false);
    gateway.send(&[text(&user(1))]).await;
    let calls = scene.bot.begun(2);
    assert!(calls[1].fence > calls[0].fence, "the later one is known by its fence");
    scene.finish(&gateway, 2);
    assert!(scene.told().is_empty());
}

const MENU: &str = r#"
busy_text = "請稍候"

[[rule]]
event = "postback"
data = { action = "weather", type = ["home", "office"] }
guard = "mutex"
ttl = "300s"

[[rule]]
event = "postback"
data = { action = "recent_queries" }
guard = "mutex"
ttl = "300s"
"#;

/// The postbacks that the second version of the original bot locks, and those that it does not.
#[tokio::test(flavor = "multi_thread")]
async fn rules_lock_only_postbacks_that_cost_a_lookup() {
    let scene = Scene::on_redis().await;
    let gateway = scene.gateway().rules(MENU).start();
    let who = user(1);
    scene.bot.holds();
    gateway.send(&[events::postback(&who, "action=weather&type=home")]).await;
    scene.bot.begun(1);
    let locked =
        ["action=weather&type=office", "type=home&action=weather", "action=recent_queries"];
    let locked: Vec<_> = locked.iter().map(|data| events::postback(&who, data)).collect();
    gateway.send(&locked).await;
    let told = || scene.line.accepted_calls().len();
    eventually("three are told to wait", || told() == 3);
    assert!(scene.line.accepted_calls().iter().all(|said| said.texts() == ["請稍候"]));
    let free =
        ["action=weather&type=current", "action=settings", "action=other", "action=weather", "x=1"];
    let mut free: Vec<_> = free.iter().map(|data| events::postback(&who, data)).collect();
    free.extend([text(&who), events::location(&who, "家🥚", 25.0, 121.5), events::follow(&who)]);
    gateway.send(&free).await;
    scene.bot.begun(1 + free.len());
    scene.finish(&gateway, 1 + free.len());
    assert_eq!((scene.bot.calls().len(), told()), (1 + free.len(), 3));
}
