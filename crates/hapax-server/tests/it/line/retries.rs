//! A bot that fails: its events are retried, and then become dead letters.

use serde_json::json;

use crate::cli_support::{hapax, run};
use crate::line::bot::Reaction;
use crate::line::gateway::Gateway;
use crate::line::harness::{Scene, again, eventually, lock_key, text, user};
use crate::line::leaks;
use crate::support::store::{TestStore, tests_on_stores};

#[tokio::test(flavor = "multi_thread")]
async fn line_retry_has_same_key_and_greater_attempt_and_fence() {
    let scene = Scene::on_redis().await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms"]).start();
    scene.bot.does(|call| match call.attempt {
        1 => Reaction::Answer(500),
        2 => Reaction::Cut,
        3 => Reaction::Answer(404),
        _ => Reaction::Answer(204),
    });
    let event = text(&user(1));
    let calls = scene.send_until_begun(&gateway, std::slice::from_ref(&event), 4).await;
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
    let scene = Scene::on_redis().await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms"]).start();
    let key = lock_key(&user(1));
    scene
        .bot
        .does(|call| if call.attempt == 1 { Reaction::Hold(500) } else { Reaction::Answer(200) });
    let admitted = text(&user(1));
    scene.send_until_begun(&gateway, std::slice::from_ref(&admitted), 1).await;
    // A foreign writer takes the lock before the event fails, so the retry finds it held.
    scene.redis().cli(&["SET", &key, "another event", "EX", "300"]);
    scene.bot.let_go(1);
    gateway.counts("hapax_line_handled_total", &["result=\"failed\""], 1.0);
    // The retry waits; a new event is told to wait.
    eventually("the retry is in flight", || gateway.queue()["in_flight"] == 1);
    let late = text(&user(1));
    scene.send_until_told(&gateway, std::slice::from_ref(&late), 1).await;
    assert_eq!((scene.times_told(&late), scene.bot.calls().len()), (1, 1));
    scene.redis().cli(&["DEL", &key]);
    let calls = scene.bot.begun(2);
    assert!(calls[1].is(&admitted) && calls[1].attempt >= 2, "{calls:?}");
    gateway.idle();
    assert_eq!((scene.bot.calls().len(), scene.told().len()), (2, 1));
    assert!(gateway.dead().is_empty());
}

/// The same with another event of hapax instead of a foreign lock.
#[tokio::test(flavor = "multi_thread")]
async fn line_retried_event_does_not_lose_its_successor() {
    let scene = Scene::on_redis().await;
    let start = scene.gateway().flags(&["--backoff", "3s"]);
    let gateway = start.long_locks().start();
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
            (true, 1) => Reaction::Answer(500),
            (true, _) => Reaction::Answer(200),
            (false, _) => Reaction::Hold(200),
        }
    });
    gateway.send(std::slice::from_ref(&first)).await;
    gateway.counts("hapax_line_handled_total", &["result=\"failed\""], f64::from(number));
    gateway.send(std::slice::from_ref(&second)).await;
    let (begun, told) = (|| scene.bot.calls_of(&second).len(), || scene.times_told(&second));
    eventually("the second begins", || begun() + told() > 0);
    // An event that is told to wait has met the retry, which may not have reached the bot yet.
    let retried_before = told() > 0 || scene.bot.calls_of(&first).len() > 1;
    if !retried_before {
        eventually("the retry is in flight meanwhile", || gateway.queue()["in_flight"] == 2);
        assert_eq!((scene.bot.calls_of(&first).len(), told()), (1, 0));
    }
    scene.finish(gateway, begun());
    assert_eq!(scene.bot.calls_of(&first).len(), 2);
    // An earlier user may have been told to wait.
    assert!(retried_before || told() == 0);
    !retried_before
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_08_bot_that_takes_nothing_is_waited_for() {
    let scene = Scene::on(TestStore::sqlite()).await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms", "--max-attempts", "2"]).start();
    scene.bot.does(|_| Reaction::Answer(503));
    gateway.send(&[text(&user(1)), text(&user(2)), text(&user(3))]).await;
    gateway.counts("hapax_line_handled_total", &["result=\"away\""], 10.0);
    assert_eq!(gateway.dead(), Vec::<serde_json::Value>::new());
    let (status, ready) = gateway.get("/readyz");
    assert_eq!((status, ready.contains("bot")), (503, true), "{ready}");
    scene.bot.does(|_| Reaction::Answer(200));
    gateway.idle();
    gateway.readiness_is(200);
    assert_eq!(gateway.dead(), Vec::<serde_json::Value>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn line_unknown_outcomes_are_listed_for_the_operator() {
    let scene = Scene::on(TestStore::sqlite()).await;
    let gateway = scene.gateway().flags(&["--on-unknown", "refuse"]).start();
    scene.bot.does(|call| match call.event["source"]["userId"] == user(1) {
        true => Reaction::Cut,
        false => Reaction::Answer(200),
    });
    gateway.send(&[text(&user(1)), text(&user(2))]).await;
    gateway.has_dead(1);
    gateway.idle();
    let list = ["command", "list", "--state", "unknown", "--json", "--store", &scene.store_url];
    let ran = run(hapax().args(list));
    leaks::check(&ran.ok(), &scene.tokens);
    let listed = ran.json();
    let commands = listed["commands"].as_array().expect("a list");
    assert_eq!(commands.len(), 1, "the other one was handled: {listed}");
    let command = &commands[0];
    assert_eq!((&command["operation"], &command["state"]), (&json!("line"), &json!("unknown")));
    assert_eq!(command["key"], gateway.dead()[0]["id"], "by the id of the queue's entry");
}

/// On any store: a dead letter is shown without personal data (every response is searched), and is
/// handled when it is requeued.
async fn becomes_a_dead_letter(store: TestStore) {
    let scene = Scene::on(store).await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms", "--max-attempts", "3"]).start();
    scene.bot.does(|_| Reaction::Answer(500));
    let event = text(&user(1));
    gateway.send(&[event.clone(), text(&user(2))]).await;
    gateway.has_dead(2);
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

    scene.bot.does(|_| Reaction::Answer(200));
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

tests_on_stores! {
    becomes_a_dead_letter;
    line_dead_letter_can_be_requeued_on_redis on redis,
    line_dead_letter_can_be_requeued_on_sqlite on sqlite,
}

#[tokio::test(flavor = "multi_thread")]
async fn line_refuse_turns_unknown_outcome_into_dead_letter() {
    let scene = Scene::on_redis().await;
    let gateway = scene.gateway().flags(&["--backoff", "20ms", "--on-unknown", "refuse"]).start();
    scene.bot.does(|_| Reaction::Cut);
    gateway.send(&[text(&user(1))]).await;
    gateway.has_dead(1);
    // A 500 says that the bot did nothing.
    scene.bot.does(|call| Reaction::Answer(if call.attempt == 1 { 500 } else { 200 }));
    scene.send_until_begun(&gateway, &[text(&user(2))], 3).await;
    gateway.idle();
    assert_eq!((gateway.dead().len(), scene.bot.calls().len()), (1, 3));
}
