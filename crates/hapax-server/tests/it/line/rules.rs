//! Lock rules on a running gateway.

use hapax_line::simulator::events;
use hapax_testkit::wait_for;

use crate::line::bot::Reaction;
use crate::line::harness::{Scene, WAIT_TIMEOUT, eventually, exists, lock_key, pttl, text, user};

#[tokio::test(flavor = "multi_thread")]
async fn throttle_window_outlasts_finished_work() {
    let scene = Scene::on_redis().await;
    let rules = "[[rule]]\nevent = \"postback\"\nguard = \"throttle\"\nttl = \"300s\"";
    let gateway = scene.gateway().rules(rules).start();
    let (key, tap) = (lock_key(&user(1)), || events::postback(&user(1), "action=weather&note=🥚"));
    scene.send_until_handled(&gateway, &[tap()], 1).await;
    let left = pttl(scene.redis(), &key);
    assert!(left > 0 && left <= 300_000, "{left}");
    scene.send_until_told(&gateway, &[tap()], 1).await;
    // Text messages have no rule, so they are not locked.
    scene.send_until_handled(&gateway, &[text(&user(1))], 2).await;
    assert!(pttl(scene.redis(), &key) <= left, "nothing made the window longer");
    // The window ends.
    scene.redis().cli(&["PEXPIRE", &key, "1"]);
    exists(scene.redis(), &key, false);
    scene.send_until_handled(&gateway, &[tap()], 3).await;
    assert_eq!(scene.told().len(), 1);
    gateway.counts("processing_lock_release_total", &["status=\"kept\""], 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn throttle_window_of_one_second_ends_by_itself() {
    let scene = Scene::on_redis().await;
    let rules = "[[rule]]\nevent = \"postback\"\nguard = \"throttle\"";
    let gateway = scene.gateway().rules(rules).start();
    for taps in 1..=2 {
        scene
            .send_until_handled(
                &gateway,
                &[events::postback(&user(1), "action=recent_queries&note=🥚")],
                taps,
            )
            .await;
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
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    let mut least = pttl(scene.redis(), &key);
    wait_for("it is renewed", WAIT_TIMEOUT, || {
        let left = pttl(scene.redis(), &key);
        assert!(left > 0, "it ran out while the bot was at work");
        least = least.min(left);
        (left > least + 500).then_some(())
    });
    scene.send_until_told(&gateway, &[text(&user(1))], 1).await;
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
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    exists(scene.redis(), &key, false);
    let calls = scene.send_until_begun(&gateway, &[text(&user(1))], 2).await;
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
    scene
        .send_until_begun(&gateway, &[events::postback(&who, "action=weather&type=home")], 1)
        .await;
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
    // Unlocked events follow one another, and none waits for the locked one, which the bot still holds.
    scene.bot.does(|_| Reaction::Answer(200));
    scene.send_until_begun(&gateway, &free, 1 + free.len()).await;
    scene.finish(&gateway, 1 + free.len());
    assert_eq!((scene.bot.calls().len(), told()), (1 + free.len(), 3));
}
