//! Unlocked events of one source run in order, one at a time, over all gateways of the channel.

use std::time::Duration;

use futures_util::future::join_all;
use hapax_line::simulator::events;
use serde_json::Value;

use crate::line::bot::{Call, Reaction};
use crate::line::gateway::Gateway;
use crate::line::harness::{Scene, text, user};
use crate::support::store::{TestStore, tests_on_stores};

const USERS: u32 = 5;
/// Of each user; every webhook has two texts.
const WEBHOOKS: usize = 20;

/// A gateway that locks nothing.
fn unlocked(scene: &Scene) -> Gateway {
    scene.gateway().env("PROCESSING_LOCK_ENABLED", "false").start()
}

fn numbered(user: &str, number: usize) -> Value {
    events::text(user, &format!("{number} 🥚"))
}

fn is_of(call: &Call, user: &str) -> bool {
    call.event["source"]["userId"] == user
}

/// Sends the webhooks of one user, one after the other, each to the next gateway.
async fn send_all(gateways: &[Gateway], user: &str) {
    for webhook in 0..WEBHOOKS {
        let texts = [0, 1].map(|text| numbered(user, 2 * webhook + text));
        gateways[webhook % gateways.len()].send(&texts).await;
    }
}

async fn order_of_sources_holds(store: TestStore, gateways: usize) {
    let scene = Scene::on(store).await;
    let gateways: Vec<_> = (0..gateways).map(|_| unlocked(&scene)).collect();
    // Calls that overlap are seen to do so, because each takes a moment.
    scene.bot.does(|_| Reaction::After(Duration::from_millis(5)));
    let users: Vec<_> = (0..USERS).map(user).collect();
    join_all(users.iter().map(|user| send_all(&gateways, user))).await;
    scene.bot.ended(users.len() * WEBHOOKS * 2);
    for gateway in &gateways {
        gateway.idle();
    }
    let calls = scene.bot.calls();
    for user in &users {
        let own: Vec<_> = calls.iter().filter(|call| is_of(call, user)).collect();
        let texts: Vec<_> =
            own.iter().map(|call| call.event["message"]["text"].as_str().unwrap()).collect();
        let sent: Vec<_> = (0..2 * WEBHOOKS).map(|number| format!("{number} 🥚")).collect();
        assert_eq!(texts, sent, "each once, in order");
        let overlaps = |pair: &&[&Call]| pair[1].began_at < pair[0].ended_at;
        assert_eq!(own.windows(2).filter(overlaps).count(), 0, "calls of one user overlap");
    }
}

tests_on_stores! {
    |store| order_of_sources_holds(store, 1);
    fault_09_unlocked_webhooks_run_in_order_on_redis on redis,
}

tests_on_stores! {
    |store| order_of_sources_holds(store, 2);
    fault_09_order_holds_over_two_gateways_on_redis on redis,
    fault_09_order_holds_over_two_gateways_on_sqlite on sqlite,
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_09_unlocked_sources_run_side_by_side() {
    let scene = Scene::on_redis().await;
    let gateways = [unlocked(&scene), unlocked(&scene)];
    scene.bot.holds();
    for number in 0..20 {
        let texts = [0, 1].map(|text| numbered(&user(number), text));
        gateways[number as usize % 2].send(&texts).await;
    }
    // No call ends before one of each user has begun.
    let calls = scene.bot.begun(20);
    for number in 0..20 {
        let own: Vec<_> = calls.iter().filter(|call| is_of(call, &user(number))).collect();
        assert_eq!(own.len(), 1);
        assert_eq!(own[0].event["message"]["text"], "0 🥚");
    }
    scene.finish(&gateways[0], 40);
    assert_eq!(scene.bot.calls().len(), 40);
}

/// The default rules lock texts and do not lock follows.
#[tokio::test(flavor = "multi_thread")]
async fn fault_09_locked_event_neither_waits_nor_holds_up() {
    let scene = Scene::on_redis().await;
    let gateways = [(); 2].map(|()| scene.gateway().long_locks().start());
    scene.bot.holds();
    let follows = [events::follow(&user(1)), events::follow(&user(1))];
    scene.send_until_begun(&gateways[0], &follows, 1).await;
    let (locked, refused) = (text(&user(1)), text(&user(1)));
    scene.send_until_begun(&gateways[1], std::slice::from_ref(&locked), 2).await;
    scene.send_until_told(&gateways[0], std::slice::from_ref(&refused), 1).await;
    assert_eq!(scene.times_told(&refused), 1);
    // The bot lets its calls go in their order: the first follow ends, and the locked text is still held.
    scene.bot.let_go(1);
    let calls = scene.bot.begun(3);
    assert!(calls[0].is(&follows[0]) && calls[1].is(&locked) && calls[2].is(&follows[1]));
    assert!(calls[0].ended && !calls[1].ended);
    scene.finish(&gateways[0], 2);
    assert_eq!(scene.bot.calls().len(), 3);
}
