//! A bot that fails: tried again, then a dead letter.

use std::time::Duration;

use hapax_testkit::{Redis, wait_for};

use crate::bot::Deed;
use crate::harness::{PATIENCE, Scene, again, lock_key, text, user};

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_event_is_tried_again_with_the_same_key_and_a_greater_attempt_and_fence() {
    let redis = Redis::start();
    let scene = Scene::on_redis(&redis).await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms"]).start();
    scene.bot.does(|call| match call.attempt {
        1 => Deed::Answer(500),
        2 => Deed::Cut,
        3 => Deed::Answer(404),
        _ => Deed::Answer(204),
    });
    let event = text(&user(1));
    gateway.send_one(&event).await;
    let calls = scene.bot.begun(4);
    gateway.idle();
    assert_eq!(scene.bot.calls().len(), 4);
    assert!(calls.iter().all(|call| call.key == calls[0].key && call.is(&event)));
    assert_eq!(calls.iter().map(|call| call.attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(calls.windows(2).all(|pair| pair[0].fence < pair[1].fence), "{calls:?}");
    assert!(scene.line.said().is_empty());
    gateway.send(&[again(&event)]).await;
    gateway.idle();
    assert_eq!(scene.bot.calls().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_event_waits_for_its_users_lock_and_is_not_told_to() {
    let redis = Redis::start();
    let scene = Scene::on_redis(&redis).await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms"]).start();
    let key = lock_key(&user(1));
    scene.bot.does(|call| if call.attempt == 1 { Deed::Hold(500) } else { Deed::Answer(200) });
    let admitted = text(&user(1));
    gateway.send_one(&admitted).await;
    scene.bot.begun(1);
    // Before it fails the lock is another's already, so no retry can come before that.
    redis.cli(&["SET", &key, "another event", "EX", "300"]);
    scene.bot.let_go(1);
    gateway.counts("hapax_line_handled_total", &["result=\"failed\""], 1.0);
    // It is in flight again, and waits; who comes now is told to.
    let in_flight = || (gateway.queue()["in_flight"] == 1).then_some(());
    wait_for("the retry is in flight", PATIENCE, in_flight);
    let late = text(&user(1));
    gateway.send_one(&late).await;
    scene.told_in_all(1);
    assert_eq!((scene.times_told(&late), scene.bot.calls().len()), (1, 1));
    redis.cli(&["DEL", &key]);
    let calls = scene.bot.begun(2);
    assert!(calls[1].is(&admitted) && calls[1].attempt >= 2, "{calls:?}");
    gateway.idle();
    assert_eq!((scene.bot.calls().len(), scene.told().len()), (2, 1));
    assert!(gateway.dead().is_empty());
}

/// The same with an event of hapax's own in between, and no foreign hand.
#[tokio::test(flavor = "multi_thread")]
async fn two_events_of_one_user_are_both_handled_where_the_first_has_to_be_retried() {
    let redis = Redis::start();
    let scene = Scene::on_redis(&redis).await;
    let start = scene.gateway().flags(&["--backoff", "3s"]);
    let gateway = start.env("PROCESSING_LOCK_TIMEOUT_SECONDS", "300").start();
    let (first, second) = (text(&user(1)), text(&user(1)));
    scene.bot.does({
        let first = first.clone();
        move |call| match (call.is(&first), call.attempt) {
            (true, 1) => Deed::Answer(500),
            (true, _) => Deed::Answer(200),
            (false, _) => Deed::Hold(200),
        }
    });
    gateway.send_one(&first).await;
    gateway.counts("hapax_line_handled_total", &["result=\"failed\""], 1.0);
    gateway.send_one(&second).await;
    wait_for("the second begins", PATIENCE, || scene.bot.calls_of(&second).pop());
    let both = || (gateway.queue()["in_flight"] == 2).then_some(());
    let waited = wait_for_at_most(Duration::from_secs(10), both);
    scene.bot.let_go(1);
    gateway.idle();
    assert_eq!(scene.bot.calls_of(&first).len(), 2);
    // On a machine so slow that the retry came first, the second had nobody to wait for.
    assert!(waited || scene.bot.calls()[1].is(&first), "the retry was in flight meanwhile");
    assert!(scene.told().is_empty());
}

fn wait_for_at_most(limit: Duration, mut probe: impl FnMut() -> Option<()>) -> bool {
    let until = std::time::Instant::now() + limit;
    while std::time::Instant::now() < until {
        if probe().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// On any store: shown without anything personal (every answer is searched), and handled when it is
/// put back.
async fn becomes_a_dead_letter(scene: &Scene) {
    let gateway = scene.gateway().flags(&["--backoff", "20ms", "--max-attempts", "3"]).start();
    scene.bot.does(|_| Deed::Answer(500));
    let event = text(&user(1));
    gateway.send(&[event.clone(), text(&user(2))]).await;
    wait_for("both are dead letters", PATIENCE, || (gateway.dead().len() == 2).then_some(()));
    assert_eq!(scene.bot.calls().len(), 6);
    let queue = gateway.queue();
    assert_eq!((&queue["dead"], &queue["depth"]), (&2.into(), &0.into()), "{queue}");
    for letter in gateway.dead() {
        assert_eq!(letter["attempts"], 3);
        assert!(letter["reason"].as_str().unwrap().contains("500"), "{letter}");
    }
    // Neither does a redelivery bring it back.
    gateway.send(&[again(&event)]).await;
    gateway.idle();
    assert_eq!(scene.bot.calls().len(), 6);

    scene.bot.does(|_| Deed::Answer(200));
    let id = scene.bot.calls_of(&event)[0].key.clone();
    let dead = gateway.dead();
    let letter = dead.iter().find(|letter| letter["id"] == id.as_str());
    assert!(letter.is_some(), "the key is the id of the queue's entry: {dead:?}");
    assert_eq!(gateway.post(&format!("/v1/queues/line/dead/{id}/requeue")).0, 204);
    let calls = scene.bot.begun(7);
    let before = scene.bot.calls_of(&event)[2].fence;
    assert!(calls[6].is(&event) && calls[6].fence > before, "{calls:?}");
    gateway.idle();
    assert_eq!((gateway.dead().len(), scene.bot.calls().len()), (1, 7));
    assert!(scene.line.said().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_too_often_is_a_dead_letter_that_can_be_put_back_on_redis() {
    let redis = Redis::start();
    becomes_a_dead_letter(&Scene::on_redis(&redis).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_too_often_is_a_dead_letter_that_can_be_put_back_on_sqlite() {
    becomes_a_dead_letter(&Scene::on_sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_knows_and_the_policy_is_refuse_it_is_a_dead_letter_at_once() {
    let redis = Redis::start();
    let scene = Scene::on_redis(&redis).await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms", "--on-unknown", "refuse"]).start();
    scene.bot.does(|_| Deed::Cut);
    gateway.send(&[text(&user(1))]).await;
    wait_for("it is a dead letter", PATIENCE, || (gateway.dead().len() == 1).then_some(()));
    // A 500 is the bot's word that nothing happened.
    scene.bot.does(|call| Deed::Answer(if call.attempt == 1 { 500 } else { 200 }));
    gateway.send(&[text(&user(2))]).await;
    scene.bot.begun(3);
    gateway.idle();
    assert_eq!((gateway.dead().len(), scene.bot.calls().len()), (1, 3));
}
