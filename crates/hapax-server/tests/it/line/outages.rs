//! The store is stopped, killed, slow, or not there yet: the bot works as before, and LINE gets its
//! 200 in time. When the store is back, locks work, and events that were handled meanwhile are
//! known.

use std::time::Duration;

use hapax_testkit::{Redis, TcpProxy};
use serde_json::Value;

use crate::line::bot::Reaction;
use crate::line::crashes::done;
use crate::line::gateway::Gateway;
use crate::line::harness::{Scene, again, eventually, lock_key, text, user};
use crate::support::until_true;

/// Checks that an event is handled while the store works, and that the queue shows it.
async fn works_with_store(scene: &Scene, gateway: &Gateway) -> Value {
    let event = text(&user(0));
    scene.send_until_handled(gateway, std::slice::from_ref(&event), 1).await;
    event
}

/// Checks that, while the store is away, every event is answered in time and handled, and no sender
/// is told to wait. Returns those events.
async fn works_without_store(
    scene: &Scene,
    gateway: &Gateway,
    users: std::ops::Range<u32>,
) -> Vec<Value> {
    let mut sent = Vec::new();
    for number in users {
        // Two taps of each user: without the store, no lock keeps the second tap out.
        for _ in 0..2 {
            sent.extend(gateway.send_in_time(|| text(&user(number))).await);
        }
    }
    for event in &sent {
        let ended = || scene.bot.calls_of(event).iter().any(|call| call.ended);
        eventually("it is handled without a store", ended);
    }
    assert!(scene.told().is_empty(), "nobody is told to wait");
    let unprotected = gateway.metric("hapax_line_events_total", &["result=\"unprotected\""]);
    assert!(unprotected >= sent.len() as f64, "{unprotected} of {} were counted", sent.len());
    sent
}

/// Waits until the store is back: a lock is seen in it, and a second tap is told to wait.
async fn locks_work(scene: &Scene, gateway: &Gateway) {
    scene.bot.holds();
    let (mut begun, told) = (scene.bot.calls().len(), scene.told().len());
    let answered = || scene.bot.calls().len() + scene.told().len();
    // A gateway needs a moment to notice that the store is back, and one with the default timeouts
    // takes a stalled machine for a store that is away: events then pass without a lock.
    for number in 1000..2000 {
        begun += 1;
        scene.send_until_begun(gateway, &[text(&user(number))], begun).await;
        // The lock is held for longer than any machine stalls.
        if scene.redis().cli(&["EXPIRE", &lock_key(&user(number)), "300"]) == "1" {
            gateway.send(&[text(&user(number))]).await;
            eventually("the second tap is answered", || answered() > begun + told);
            if scene.told().len() > told {
                break;
            }
            begun += 1;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(scene.told().len(), told + 1, "locks never came back");
    assert_eq!(scene.bot.calls().len(), begun, "{:?}", repeated(scene));
    scene.bot.let_go(begun);
    scene.bot.does(|_| Reaction::Answer(200));
    gateway.idle();
}

/// The events that the bot got more than once, for the message of an assertion.
fn repeated(scene: &Scene) -> Vec<(String, u32, Option<u64>, bool)> {
    let calls = scene.bot.calls();
    let again = calls.iter().filter(|call| scene.bot.calls_of(&call.event).len() > 1);
    again.map(|call| (call.key.clone(), call.attempt, call.fence, call.ended)).collect()
}

/// Checks that each event was handled once, and that a redelivery is recognised by this gateway
/// and, through the store, by another one.
async fn are_known(scene: &Scene, gateway: Gateway, events: &[Value]) {
    let once = |events: &[Value], when: &str| {
        for event in events {
            assert_eq!(scene.bot.calls_of(event).len(), 1, "{when}");
        }
    };
    once(events, "whatever the store did");
    // The gateway tells the store when it is back, without a further event.
    until_true("the store knows what was done without it", async || {
        done(&scene.store_url, events).await.len() == events.len()
    })
    .await;
    let copies = |events: &[Value]| events.iter().map(again).collect::<Vec<_>>();
    let (here, elsewhere) = events.split_at(events.len() / 2);
    let unprotected = || gateway.metric("hapax_line_events_total", &["result=\"unprotected\""]);
    let before = unprotected();
    gateway.send(&copies(here)).await;
    gateway.idle();
    // A gateway with the default timeouts takes a stalled machine for a store that is away.
    if unprotected() == before {
        once(here, "a redelivered event is known");
    }
    drop(gateway);
    let another = scene.start();
    another.send(&copies(elsewhere)).await;
    another.idle();
    once(elsewhere, "another gateway knows it, too");
}

/// A scene and a gateway with the default store timeout.
fn with_short_timeout(scene: Scene) -> (Scene, Gateway) {
    // A long timeout, so that a held bot is not cut off on a slow machine.
    let gateway = scene.gateway().impatient().flags(&["--handle-timeout", "300s"]).start();
    (scene, gateway)
}

/// Breaks the store and repairs it, while events come.
async fn survives_an_outage(scene: Scene, fail: impl FnOnce(&Redis), repair: impl FnOnce(&Redis)) {
    let (scene, gateway) = with_short_timeout(scene);
    let before = works_with_store(&scene, &gateway).await;
    fail(scene.redis());
    let meanwhile = works_without_store(&scene, &gateway, 1..4).await;
    repair(scene.redis());
    locks_work(&scene, &gateway).await;
    are_known(&scene, gateway, &[meanwhile, vec![before]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hole_3_hanging_redis_stops_no_event() {
    survives_an_outage(Scene::on_redis().await, Redis::stop, Redis::cont).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_slow_redis_stops_no_event() {
    let mut scene = Scene::on_redis().await;
    let wire = TcpProxy::to(scene.redis().port());
    scene.store_url = format!("redis://127.0.0.1:{}/0", wire.port());
    let slow = |_: &Redis| wire.delay_answers(Duration::from_secs(3));
    survives_an_outage(scene, slow, |_| wire.resume()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_killed_redis_stops_no_event() {
    let (scene, gateway) = with_short_timeout(Scene::on_redis().await);
    let before = works_with_store(&scene, &gateway).await;
    scene.redis().kill();
    let meanwhile = works_without_store(&scene, &gateway, 1..4).await;
    gateway.readiness_is(503);
    assert_eq!(gateway.get("/healthz").0, 200);
    scene.redis().restart();
    locks_work(&scene, &gateway).await;
    gateway.readiness_is(200);
    are_known(&scene, gateway, &[meanwhile, vec![before]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_redis_absent_at_start_stops_no_event() {
    let scene = Scene::on_redis().await;
    scene.redis().kill();
    let (scene, gateway) = with_short_timeout(scene);
    let meanwhile = works_without_store(&scene, &gateway, 1..4).await;
    scene.redis().restart();
    locks_work(&scene, &gateway).await;
    are_known(&scene, gateway, &meanwhile).await;
}

/// The event is stored and locked; then the store goes away while the bot works.
#[tokio::test(flavor = "multi_thread")]
async fn line_redis_lost_during_work_repeats_nothing() {
    let (scene, gateway) = with_short_timeout(Scene::on_redis().await);
    scene.bot.holds();
    let event = text(&user(1));
    scene.send_until_begun(&gateway, std::slice::from_ref(&event), 1).await;
    scene.redis().stop();
    scene.bot.let_go(1);
    scene.bot.ended(1);
    // Another event is answered without the store.
    let other = gateway.send_in_time(|| text(&user(2))).await;
    scene.bot.let_go(other.len());
    scene.bot.ended(1 + other.len());
    scene.redis().cont();
    locks_work(&scene, &gateway).await;
    are_known(&scene, gateway, &[event]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_closed_policy_answers_503_without_store() {
    let scene = Scene::on_redis().await;
    let flags = ["--on-store-error", "closed", "--handle-timeout", "300s"];
    let gateway = scene.gateway().impatient().flags(&flags).start();
    scene.redis().kill();
    let event = text(&user(1));
    let refused = gateway.try_send(std::slice::from_ref(&event)).await.expect("an answer");
    assert_eq!(refused.status, 503);
    scene.redis().restart();
    // LINE delivers the event again until it gets a 200.
    until_true("the event is taken", async || {
        gateway.try_send(&[again(&event)]).await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
    scene.bot.ended(1);
    gateway.idle();
    assert_eq!(scene.bot.calls_of(&event).len(), 1);
}
