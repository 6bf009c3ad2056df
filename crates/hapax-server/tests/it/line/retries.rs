//! A bot that fails: its events are retried, and then become dead letters.

use std::process::Command;

use hapax_testkit::{Redis, wait_for};
use serde_json::{Value, json};

use crate::line::bot::Deed;
use crate::line::gateway::Gateway;
use crate::line::harness::{PATIENCE, Scene, again, lock_key, text, user};
use crate::line::leaks;

#[tokio::test(flavor = "multi_thread")]
async fn line_retry_has_same_key_and_greater_attempt_and_fence() {
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
    assert!(scene.line.accepted_calls().is_empty());
    gateway.send(&[again(&event)]).await;
    gateway.idle();
    assert_eq!(scene.bot.calls().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn line_retried_event_waits_for_the_lock_silently() {
    let redis = Redis::start();
    let scene = Scene::on_redis(&redis).await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms"]).start();
    let key = lock_key(&user(1));
    scene.bot.does(|call| if call.attempt == 1 { Deed::Hold(500) } else { Deed::Answer(200) });
    let admitted = text(&user(1));
    gateway.send_one(&admitted).await;
    scene.bot.begun(1);
    // A foreign writer takes the lock before the event fails, so the retry finds it held.
    redis.cli(&["SET", &key, "another event", "EX", "300"]);
    scene.bot.let_go(1);
    gateway.counts("hapax_line_handled_total", &["result=\"failed\""], 1.0);
    // The retry waits; a new event is told to wait.
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

/// The same with another event of hapax instead of a foreign lock.
#[tokio::test(flavor = "multi_thread")]
async fn line_retried_event_does_not_lose_its_successor() {
    let redis = Redis::start();
    let scene = Scene::on_redis(&redis).await;
    let start = scene.gateway().flags(&["--backoff", "3s"]);
    let gateway = start.env("PROCESSING_LOCK_TIMEOUT_SECONDS", "300").start();
    // On a stalled machine the retry may come first: the second event then finds the lock free, or
    // is told to wait, and the test tries again with another user.
    for number in 1..=10 {
        if retried_while_another_is_at_work(&scene, &gateway, number).await {
            return;
        }
    }
    panic!("ten times the retry came before the next event");
}

/// Whether the retry waited for the second event.
async fn retried_while_another_is_at_work(scene: &Scene, gateway: &Gateway, number: u32) -> bool {
    let (first, second) = (text(&user(number)), text(&user(number)));
    scene.bot.does({
        let first = first.clone();
        move |call| match (call.is(&first), call.attempt) {
            (true, 1) => Deed::Answer(500),
            (true, _) => Deed::Answer(200),
            (false, _) => Deed::Hold(200),
        }
    });
    gateway.send_one(&first).await;
    gateway.counts("hapax_line_handled_total", &["result=\"failed\""], f64::from(number));
    gateway.send_one(&second).await;
    let (begun, told) = (|| scene.bot.calls_of(&second).len(), || scene.times_told(&second));
    wait_for("the second begins", PATIENCE, || (begun() + told() > 0).then_some(()));
    // An event that is told to wait has met the retry, which may not have reached the bot yet.
    let retried_before = told() > 0 || scene.bot.calls_of(&first).len() > 1;
    if !retried_before {
        let both = || (gateway.queue()["in_flight"] == 2).then_some(());
        wait_for("the retry is in flight meanwhile", PATIENCE, both);
        assert_eq!((scene.bot.calls_of(&first).len(), told()), (1, 0));
    }
    scene.bot.let_go(begun());
    gateway.idle();
    assert_eq!(scene.bot.calls_of(&first).len(), 2);
    // An earlier user may have been told to wait.
    assert!(retried_before || told() == 0);
    !retried_before
}

#[tokio::test(flavor = "multi_thread")]
async fn line_unknown_outcomes_are_listed_for_the_operator() {
    let scene = Scene::on_sqlite().await;
    let gateway = scene.gateway().flags(&["--on-unknown", "refuse"]).start();
    scene.bot.does(|call| match call.event["source"]["userId"] == user(1) {
        true => Deed::Cut,
        false => Deed::Answer(200),
    });
    gateway.send(&[text(&user(1)), text(&user(2))]).await;
    wait_for("it is a dead letter", PATIENCE, || (gateway.dead().len() == 1).then_some(()));
    gateway.idle();
    let output = Command::new(env!("CARGO_BIN_EXE_hapax"))
        .args(["command", "list", "--state", "unknown", "--json", "--store", &scene.store])
        .env_clear()
        .output()
        .expect("hapax runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    leaks::check(&String::from_utf8_lossy(&output.stdout), &scene.tokens);
    let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let commands = listed["commands"].as_array().expect("a list");
    assert_eq!(commands.len(), 1, "the other one was handled: {listed}");
    let command = &commands[0];
    assert_eq!((&command["operation"], &command["state"]), (&json!("line"), &json!("unknown")));
    assert_eq!(command["key"], gateway.dead()[0]["id"], "by the id of the queue's entry");
}

/// On any store: a dead letter is shown without personal data (every response is searched), and is
/// handled when it is requeued.
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
    // A redelivery does not bring the event back.
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
    assert!(scene.line.accepted_calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn line_dead_letter_can_be_requeued_on_redis() {
    let redis = Redis::start();
    becomes_a_dead_letter(&Scene::on_redis(&redis).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_dead_letter_can_be_requeued_on_sqlite() {
    becomes_a_dead_letter(&Scene::on_sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_refuse_turns_unknown_outcome_into_dead_letter() {
    let redis = Redis::start();
    let scene = Scene::on_redis(&redis).await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms", "--on-unknown", "refuse"]).start();
    scene.bot.does(|_| Deed::Cut);
    gateway.send(&[text(&user(1))]).await;
    wait_for("it is a dead letter", PATIENCE, || (gateway.dead().len() == 1).then_some(()));
    // A 500 says that the bot did nothing.
    scene.bot.does(|call| Deed::Answer(if call.attempt == 1 { 500 } else { 200 }));
    gateway.send(&[text(&user(2))]).await;
    scene.bot.begun(3);
    gateway.idle();
    assert_eq!((gateway.dead().len(), scene.bot.calls().len()), (1, 3));
}
