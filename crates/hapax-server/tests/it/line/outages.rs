//! The store is stopped, killed, slow, or not there yet: the bot works as before, and LINE gets its
//! 200 in time. When the store is back, locks work, and events that were handled meanwhile are
//! known.

use std::time::Duration;

use hapax_testkit::{Redis, TcpProxy, wait_for};
use serde_json::Value;

use crate::line::crashes::done;
use crate::line::gateway::Gateway;
use crate::line::harness::{PATIENCE, Scene, again, lock_key, text, user};

/// Checks that an event is handled while the store works, and that the queue shows it.
async fn works_with_store(scene: &Scene, gateway: &Gateway) -> Value {
    let event = text(&user(0));
    gateway.send_one(&event).await;
    scene.bot.ended(1);
    gateway.idle();
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
        let handled = || scene.bot.calls_of(event).iter().any(|call| call.ended).then_some(());
        wait_for("it is handled without a store", PATIENCE, handled);
    }
    assert!(scene.told().is_empty(), "nobody is told to wait");
    let unprotected = gateway.metric("hapax_line_events_total", &["result=\"unprotected\""]);
    assert!(unprotected >= sent.len() as f64, "{unprotected} of {} were counted", sent.len());
    sent
}

/// Waits until the store is back: a lock is seen in it, and a second tap is told to wait.
async fn locks_work(scene: &Scene, gateway: &Gateway, redis: &Redis) {
    scene.bot.holds();
    let (mut begun, told) = (scene.bot.calls().len(), scene.told().len());
    let answered = || scene.bot.calls().len() + scene.told().len();
    // A gateway needs a moment to notice that the store is back, and one with the default timeouts
    // takes a stalled machine for a store that is away: events then pass without a lock.
    for number in 1000..2000 {
        begun += 1;
        gateway.send(&[text(&user(number))]).await;
        scene.bot.begun(begun);
        // The lock is held for longer than any machine stalls.
        if redis.cli(&["EXPIRE", &lock_key(&user(number)), "300"]) == "1" {
            gateway.send(&[text(&user(number))]).await;
            wait_for("the second tap is answered", PATIENCE, || {
                (answered() > begun + told).then_some(())
            });
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
    scene.bot.does(|_| crate::line::bot::Deed::Answer(200));
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
    let mut known = 0;
    for _ in 0..600 {
        known = done(&scene.store, events).await.len();
        if known == events.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(known, events.len(), "the store knows what was done without it");
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
    gateway.kill();
    let another = scene.start();
    another.send(&copies(elsewhere)).await;
    another.idle();
    once(elsewhere, "another gateway knows it, too");
}

/// A scene and a gateway with the default store timeout.
async fn scene_on(redis: &Redis) -> (Scene, Gateway) {
    let scene = Scene::on_redis(redis).await;
    // A long timeout, so that a held bot is not cut off on a slow machine.
    let gateway = scene.gateway().impatient().flags(&["--handle-timeout", "300s"]).start();
    (scene, gateway)
}

#[tokio::test(flavor = "multi_thread")]
async fn hole_3_hanging_redis_stops_no_event() {
    let redis = Redis::start();
    let (scene, gateway) = scene_on(&redis).await;
    let before = works_with_store(&scene, &gateway).await;
    redis.stop();
    let meanwhile = works_without_store(&scene, &gateway, 1..4).await;
    redis.cont();
    locks_work(&scene, &gateway, &redis).await;
    are_known(&scene, gateway, &[meanwhile, vec![before]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_killed_redis_stops_no_event() {
    let redis = Redis::start();
    let (scene, gateway) = scene_on(&redis).await;
    let before = works_with_store(&scene, &gateway).await;
    redis.kill();
    let meanwhile = works_without_store(&scene, &gateway, 1..4).await;
    wait_for("it says that it is not ready", PATIENCE, || {
        (gateway.get("/readyz").0 == 503).then_some(())
    });
    assert_eq!(gateway.get("/healthz").0, 200);
    redis.restart();
    locks_work(&scene, &gateway, &redis).await;
    wait_for("it is ready again", PATIENCE, || (gateway.get("/readyz").0 == 200).then_some(()));
    are_known(&scene, gateway, &[meanwhile, vec![before]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_redis_absent_at_start_stops_no_event() {
    let redis = Redis::start();
    redis.kill();
    let (scene, gateway) = scene_on(&redis).await;
    let meanwhile = works_without_store(&scene, &gateway, 1..4).await;
    redis.restart();
    locks_work(&scene, &gateway, &redis).await;
    are_known(&scene, gateway, &meanwhile).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_slow_redis_stops_no_event() {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let scene = Scene::on(&format!("redis://127.0.0.1:{}/0", wire.port())).await;
    let gateway = scene.gateway().impatient().flags(&["--handle-timeout", "300s"]).start();
    let before = works_with_store(&scene, &gateway).await;
    wire.delay_answers(Duration::from_secs(3));
    let meanwhile = works_without_store(&scene, &gateway, 1..4).await;
    wire.resume();
    locks_work(&scene, &gateway, &redis).await;
    are_known(&scene, gateway, &[meanwhile, vec![before]].concat()).await;
}

/// The event is stored and locked; then the store goes away while the bot works.
#[tokio::test(flavor = "multi_thread")]
async fn line_redis_lost_during_work_repeats_nothing() {
    let redis = Redis::start();
    let (scene, gateway) = scene_on(&redis).await;
    scene.bot.holds();
    let event = text(&user(1));
    gateway.send_one(&event).await;
    scene.bot.begun(1);
    redis.stop();
    scene.bot.let_go(1);
    scene.bot.ended(1);
    // Another event is answered without the store.
    let other = gateway.send_in_time(|| text(&user(2))).await;
    scene.bot.let_go(other.len());
    scene.bot.ended(1 + other.len());
    redis.cont();
    locks_work(&scene, &gateway, &redis).await;
    are_known(&scene, gateway, &[event]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn line_closed_policy_answers_503_without_store() {
    let redis = Redis::start();
    let scene = Scene::on_redis(&redis).await;
    let flags = ["--on-store-error", "closed", "--handle-timeout", "300s"];
    let gateway = scene.gateway().impatient().flags(&flags).start();
    redis.kill();
    let event = text(&user(1));
    assert_eq!(
        gateway.try_send(std::slice::from_ref(&event)).await.expect("an answer").status,
        503
    );
    redis.restart();
    // LINE delivers the event again until it gets a 200.
    let mut taken = false;
    for _ in 0..600 {
        taken = gateway.try_send(&[again(&event)]).await.is_ok_and(|answer| answer.status == 200);
        if taken {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(taken, "it never was taken in");
    scene.bot.ended(1);
    gateway.idle();
    assert_eq!(scene.bot.calls_of(&event).len(), 1);
}
