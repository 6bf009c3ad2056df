//! Several events in one webhook.

use hapax_line::simulator::events;
use serde_json::{Value, json};

use crate::line::harness::{DESTINATION, Scene, text, user};
use crate::support::store::{TestStore, tests_on_stores};

#[tokio::test(flavor = "multi_thread")]
async fn line_five_events_of_one_user_run_one_and_busy_four() {
    let (scene, gateway) = Scene::with_held_locks().await;
    let batch: Vec<_> = (0..5).map(|_| text(&user(1))).collect();
    scene.send_until_begun(&gateway, &batch, 1).await;
    scene.told_in_all(4);
    scene.finish(&gateway, 1);
    let calls = scene.bot.calls();
    assert_eq!(calls.len(), 1);
    assert!(calls[0].is(&batch[0]), "the first one");
    for event in &batch[1..] {
        assert_eq!(scene.times_told(event), 1);
    }
}

/// The bot answers at once, and has finished the first event before the others could ask for the
/// lock.
async fn a_quick_bot_gets_one_of_five(store: TestStore) {
    let scene = Scene::on(store).await;
    let gateway = scene.gateway().long_locks().start();
    for round in 1..=5 {
        let batch: Vec<_> = (0..5).map(|_| text(&user(1))).collect();
        scene.send_until_told(&gateway, &batch, 4 * round).await;
        gateway.idle();
        let calls = scene.bot.calls();
        assert_eq!(calls.len(), round);
        assert!(calls[round - 1].is(&batch[0]), "the first one");
    }
}

tests_on_stores! {
    a_quick_bot_gets_one_of_five;
    line_quick_bot_still_tells_others_to_wait_on_redis on redis,
    line_quick_bot_still_tells_others_to_wait_on_sqlite on sqlite,
}

#[tokio::test(flavor = "multi_thread")]
async fn line_events_of_different_users_run_in_parallel() {
    let (scene, gateway) = Scene::started().await;
    scene.bot.holds();
    let batch: Vec<_> = (0..20).map(|number| text(&user(number))).collect();
    gateway.send(&batch).await;
    // No event ends before all have begun.
    let calls = scene.bot.begun(20);
    assert!(calls.iter().all(|call| !call.ended));
    scene.finish(&gateway, 20);
    assert_eq!((scene.bot.calls().len(), scene.told().len()), (20, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn hole_6_a_bad_event_does_not_drop_its_neighbours() {
    let (scene, gateway) = Scene::started().await;
    let good = [text(&user(1)), events::follow(&user(2)), events::unknown(&user(3))];
    // Every JSON object is an event, however strange; other values are not.
    let bad = [json!(17), json!("Uf00d"), json!(null), json!([text(&user(4))])];
    let strange = [
        json!({}),
        json!({ "type": 17, "source": "Uf00d", "message": [] }),
        json!({ "type": "message" }),
        json!({ "type": "postback", "postback": { "data": 1 }, "webhookEventId": {} }),
    ];
    let all: Vec<Value> = good.iter().chain(&bad).chain(&strange).cloned().collect();
    let body = json!({ "destination": DESTINATION, "events": all }).to_string();
    assert_eq!(gateway.send_raw(&body).await, 200);
    scene.bot.ended(good.len() + strange.len());
    gateway.idle();
    let calls = scene.bot.calls();
    assert_eq!(calls.len(), good.len() + strange.len());
    for event in good.iter().chain(&strange) {
        assert_eq!(calls.iter().filter(|call| call.event == *event).count(), 1, "{event}");
    }
    let malformed = gateway.metric("hapax_line_events_total", &["result=\"malformed\""]);
    assert_eq!(malformed, bad.len() as f64);
}
