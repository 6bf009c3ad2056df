//! Gateways of two channels on one store.

use crate::line::bot::Reaction;
use crate::line::harness::{Scene, text, user};
use crate::support::store::TestStore;

#[tokio::test(flavor = "multi_thread")]
async fn fault_10_two_channels_on_one_redis_keep_apart() {
    let first = Scene::of_channel("first-secret-food", TestStore::redis()).await;
    let second = Scene::of_channel("second-secret-food", TestStore::memory()).await;
    let on_shared = || second.gateway().store(Some(&first.store_url)).start();
    // The first bot takes nothing, so that its events wait in the store when its gateway has stopped.
    first.bot.does(|_| Reaction::Answer(503));
    let events: Vec<_> = (0..5).map(|number| text(&user(number))).collect();
    let gateway = first.start();
    first.send_until_begun(&gateway, &events, 1).await;
    gateway.stop();

    let gateway = on_shared();
    let others: Vec<_> = (10..15).map(|number| text(&user(number))).collect();
    second.send_until_handled(&gateway, &others, 5).await;
    let calls = second.bot.calls();
    assert!(calls.iter().all(|call| others.iter().any(|event| call.is(event))));
    assert_eq!(calls.len(), 5);

    // Both run now, and the first finds all its events.
    first.bot.does(|_| Reaction::Answer(200));
    let restarted = first.start();
    restarted.idle();
    for event in &events {
        assert!(!first.bot.calls_of(event).is_empty());
    }
    let more: Vec<_> = (20..30).map(|number| text(&user(number))).collect();
    let (of_first, of_second) = more.split_at(5);
    let before = first.bot.calls().len();
    restarted.send(of_first).await;
    second.send_until_handled(&gateway, of_second, 10).await;
    first.bot.ended(before + 5);
    restarted.idle();
    assert!(of_first.iter().all(|event| first.bot.calls_of(event).len() == 1));
    assert!(of_second.iter().all(|event| second.bot.calls_of(event).len() == 1));
    assert_eq!((first.bot.calls().len(), second.bot.calls().len()), (before + 5, 10));
}
