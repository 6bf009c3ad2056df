//! An event is handled once, however often LINE delivers it.

use example_common::bot_process::send;
use hapax_line::simulator::{ApiEndpoint, ApiFault, events};
use tokio::task::JoinSet;

use crate::world::{USER, World};

#[tokio::test(flavor = "multi_thread")]
async fn a_redelivered_event_costs_no_lookup_and_gets_no_second_reply() {
    let world = World::start().await;
    let question = events::text(USER, "台北🥚");
    assert!(world.ask(question.clone()).await.starts_with("📍 台北（臺灣）"));
    let again = events::redelivered(&question);
    for _ in 0..20 {
        world.send(std::slice::from_ref(&again)).await;
    }
    duplicates(&world, "text", 20).await;
    assert_eq!((world.weather.searches(), world.weather.lookups()), (1, 1));
    assert_eq!(world.said().len(), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_copies_at_once_are_one_event() {
    let world = World::start().await;
    let question = events::text(USER, "台北🥚");
    let mut copies = JoinSet::new();
    for _ in 0..20 {
        let (sender, copy) = (world.bot.sender.clone(), question.clone());
        copies.spawn(async move { send(&sender, &[copy]).await.expect("an answer").status });
    }
    assert_eq!(copies.join_all().await, [200; 20]);
    assert!(world.answer().await.starts_with("📍 台北（臺灣）"));
    duplicates(&world, "text", 19).await;
    assert_eq!((world.weather.searches(), world.weather.lookups()), (1, 1));
    assert_eq!(world.said().len(), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_line_did_not_acknowledge_is_not_repeated() {
    let world = World::start().await;
    world.line.inject(ApiEndpoint::Reply, ApiFault::CutAfter);
    assert!(world.ask(events::text(USER, "台北🥚")).await.starts_with("📍 台北（臺灣）"));
    world.handled("text").await;
    assert_eq!((world.said().len(), world.weather.lookups()), (1, 1));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_line_did_not_take_is_tried_again() {
    let world = World::start().await;
    // More failures than one call retries by itself.
    for _ in 0..3 {
        world.line.inject(ApiEndpoint::Reply, ApiFault::TooMany { retry_after: Some(0) });
    }
    assert!(world.ask(events::text(USER, "台北🥚")).await.starts_with("📍 台北（臺灣）"));
    world.handled("text").await;
    assert_eq!(world.said().len(), 1);
    world.end().await;
}

async fn duplicates(world: &World, kind: &str, count: usize) {
    let name = format!(r#"hapax_line_events_total{{event_type="{kind}",result="duplicate"}}"#);
    world.until("the copies are known", async || world.metric(&name).await == count).await;
}
