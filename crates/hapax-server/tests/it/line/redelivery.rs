//! LINE delivers an event again: it is handled once.

use futures_util::future::join_all;

use crate::line::bot::Reaction;
use crate::line::harness::{Scene, again, eventually, text, user};
use crate::support::store::{TestStore, tests_on_stores};

/// Checks on any store that an event is handled once, however often it is delivered.
async fn is_handled_once(store: TestStore, gateways: usize) {
    let scene = Scene::on(store).await;
    let gateways: Vec<_> = (0..gateways).map(|_| scene.start()).collect();
    let event = text(&user(1));
    let copies = (0..20).map(|copy| {
        let gateway = &gateways[copy % gateways.len()];
        let event = if copy == 0 { event.clone() } else { again(&event) };
        async move { gateway.send(&[event]).await }
    });
    join_all(copies).await;
    scene.bot.ended(1);
    gateways[0].idle();
    assert_eq!(scene.bot.calls().len(), 1, "20 copies at once");
    for gateway in &gateways {
        gateway.send(&[again(&event), again(&event)]).await;
    }
    gateways[0].idle();
    assert_eq!(scene.bot.calls().len(), 1, "when it was done");
    // No copy caused a busy text.
    assert!(scene.line.accepted_calls().is_empty());
    let count = |result: &str| -> f64 {
        let label = format!("result=\"{result}\"");
        gateways.iter().map(|gateway| gateway.metric("hapax_line_events_total", &[&label])).sum()
    };
    let copies = 20.0 + 2.0 * gateways.len() as f64;
    assert_eq!((count("accepted"), count("duplicate")), (1.0, copies - 1.0));
}

tests_on_stores! {
    |store| is_handled_once(store, 2);
    hole_4_twenty_copies_at_once_over_two_gateways_are_handled_once on redis,
}

tests_on_stores! {
    |store| is_handled_once(store, 1);
    line_twenty_copies_at_once_run_once_on_sqlite on sqlite,
}

#[tokio::test(flavor = "multi_thread")]
async fn line_same_id_of_another_bot_is_another_event() {
    let (scene, gateway) = Scene::started().await;
    let event =
        serde_json::json!({ "type": "follow", "webhookEventId": "01FZ74A0TDDPYRVKNK77XKC3ZR" });
    for destination in ["Uf00da", "Uf00db", "Uf00da"] {
        let body = serde_json::json!({ "destination": destination, "events": [event] }).to_string();
        assert_eq!(gateway.send_raw(&body).await, 200);
    }
    scene.bot.ended(2);
    gateway.idle();
    let calls = scene.bot.calls();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0].key, calls[1].key);
}

#[tokio::test(flavor = "multi_thread")]
async fn line_busy_reply_is_sent_once_per_event() {
    let (scene, gateway) = Scene::with_held_locks().await;
    scene.send_until_begun(&gateway, &[text(&user(1))], 1).await;
    let second = text(&user(1));
    scene.send_until_told(&gateway, std::slice::from_ref(&second), 1).await;
    // During or just after the work; the simulator refuses a reply token that is used twice.
    join_all((0..5).map(|_| async { gateway.send(&[again(&second)]).await })).await;
    scene.finish(&gateway, 1);
    // The lock is free now, but the event was answered before.
    gateway.send(&[again(&second)]).await;
    gateway.idle();
    assert_eq!((scene.bot.calls().len(), scene.told().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn line_event_is_recognised_after_a_clean_restart() {
    let scene = Scene::on(TestStore::sqlite()).await;
    let event = text(&user(1));
    let gateway = scene.start();
    scene.send_until_handled(&gateway, std::slice::from_ref(&event), 1).await;
    gateway.stop();
    let gateway = scene.start();
    gateway.send(&[again(&event)]).await;
    gateway.idle();
    assert_eq!(scene.bot.calls().len(), 1);
}

/// The gateway answers 200 and is killed before it reaches the bot: the next gateway delivers the
/// event.
#[tokio::test(flavor = "multi_thread")]
async fn hole_5_what_was_answered_200_is_handled_after_a_crash() {
    let scene = Scene::on(TestStore::sqlite()).await;
    scene.bot.holds();
    let gateway = scene.gateway().flags(&["--in-flight", "1", "--lease", "2s"]).start();
    let events: Vec<_> = (0..5).map(|number| text(&user(number))).collect();
    scene.send_until_begun(&gateway, &events, 1).await;
    drop(gateway);
    scene.bot.does(|_| Reaction::Answer(200));
    let gateway = scene.start();
    for event in &events {
        eventually("it is handled", || scene.bot.calls_of(event).iter().any(|call| call.ended));
    }
    gateway.idle();
}
