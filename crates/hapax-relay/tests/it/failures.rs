//! Poison rows, unreachable sinks, and lost leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{
    Call, Script, Working, brisk, dead, depth, drain, drained, enqueue, in_virtual_time, item,
    numbered, stored, until,
};
use hapax_core::Queue;
use hapax_core::inbox::Inbox;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::QueueName;
use hapax_relay::{AfterDead, DeliveryError, Relay, TargetHealth};
use tokio::sync::watch;

/// The usual design published rows in batches and rolled back the whole batch if one row failed.
/// With that design, every neighbour would be sent again with each attempt of the bad row, or be
/// counted as failed with it.
#[tokio::test]
async fn hole_23_a_bad_row_penalises_only_itself() {
    let mut rows = numbered(50, 50);
    rows.insert(25, item("poison").key("bad"));
    let store = stored(&rows).await;
    let sink = Arc::new(Script::refuses("poison"));
    drain(&store, sink.clone(), brisk(), 1).await;
    assert_eq!(sink.begun().len(), 50 + 3, "each neighbour once, the bad one as often as allowed");
    assert!(sink.delivered().iter().all(|call| call.attempt == 1));
    let dead = dead(&*store).await;
    assert_eq!((dead[0].attempts, &*dead[0].reason), (3, "poison"));
}

/// The usual design skipped a row that it could not parse and found it again at once, forever. The
/// test counts calls instead of time: a hot loop makes thousands of calls while the good rows are
/// sent.
#[tokio::test]
async fn hole_23_a_row_that_can_never_be_sent_does_not_loop_hot() {
    let store = stored(&[item("poison")]).await;
    let sink = Arc::new(Script::new(|call| async move {
        let poison = call.payload == "poison";
        if poison { Err(DeliveryError::refused("no JSON").permanent()) } else { Ok(()) }
    }));
    let relay = Working::start(store.clone(), sink.clone(), brisk());
    for n in 0..100 {
        enqueue(&*store, &[item(&n.to_string())]).await;
        drained(&*store).await;
    }
    relay.stop().await;
    assert_eq!(sink.calls_for("poison"), 1);
    assert_eq!(depth(&*store).await.dead, 1);
}

#[tokio::test]
async fn later_rows_of_a_dead_letters_key_wait_for_an_operator() {
    let store = stored(&["poison", "2", "3"].map(|name| item(name).key("k"))).await;
    enqueue(&*store, &[item("other").key("o")]).await;
    let sink = Arc::new(Script::refuses("poison"));
    let relay = Working::start(store.clone(), sink.clone(), brisk());
    until("it is dead", async || depth(&*store).await.dead == 1).await;
    until("others go on", async || sink.payloads() == ["other"]).await;
    assert_eq!(depth(&*store).await.waiting, 2);
    let dead = dead(&*store).await[0].id;
    assert!(store.discard(&QueueName::outbox(), None, dead).await.unwrap());
    drained(&*store).await;
    relay.stop().await;
    assert_eq!(sink.payloads(), ["other", "2", "3"]);
}

#[tokio::test]
async fn later_rows_follow_where_the_setting_says_so() {
    let store = stored(&["poison", "2", "3"].map(|name| item(name).key("k"))).await;
    let sink = Arc::new(Script::refuses("poison"));
    drain(&store, sink.clone(), brisk().after_dead(AfterDead::Continue), 1).await;
    assert_eq!(sink.payloads(), ["2", "3"]);
}

#[tokio::test]
async fn unreachable_sink_uses_up_no_attempts_and_gets_no_rows() {
    let store = stored(&numbered(20, 20)).await;
    // The sink is reachable at the start, gone with the first row, and back after ten checks.
    let away = Arc::new(AtomicBool::new(true));
    let sink = {
        let (away, back) = (away.clone(), away);
        let script = Script::new(move |_| {
            let away = away.load(Ordering::SeqCst);
            async move { if away { Err(DeliveryError::unreachable("gone")) } else { Ok(()) } }
        });
        Arc::new(script.check(move |nth| match nth {
            0 => Ok(()),
            1..=10 => Err(DeliveryError::unreachable("gone")),
            _ => {
                back.store(false, Ordering::SeqCst);
                Ok(())
            }
        }))
    };
    drain(&store, sink.clone(), brisk(), 0).await;
    assert_eq!(sink.checks(), 12);
    assert_eq!(sink.delivered().len(), 20);
    assert!(sink.delivered().iter().all(|call| call.attempt == 1));
    assert!(sink.begun().len() <= 40, "each row was tried at most once while it was away");
}

#[tokio::test]
async fn a_sink_that_panics_harms_only_the_row_that_made_it() {
    let store = stored(&["1", "panic", "2"].map(|name| item(name).key(name))).await;
    let sink = Arc::new(Script::new(|call| async move {
        assert!(call.payload != "panic", "as the test wants");
        Ok(())
    }));
    drain(&store, sink.clone(), brisk(), 1).await;
    assert_eq!((sink.begun().len(), sink.delivered().len()), (2 + 3, 2));
}

/// A broker that cuts the connection, with everything in flight on it, whenever it gets a certain
/// message. It needs virtual time: on a stalled machine the other messages would be answered before
/// the cut.
fn cut_by(culprit: &'static str) -> Arc<Script> {
    let (cuts, _) = watch::channel(0);
    Arc::new(Script::new(move |call| {
        let cuts = cuts.clone();
        async move {
            let mut cut = cuts.subscribe();
            let answer = async {
                if call.payload == culprit {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    cuts.send_modify(|n| *n += 1);
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            tokio::select! {
                biased;
                _ = cut.changed() => Err(DeliveryError::disconnected("cut")),
                () = answer => Ok(()),
            }
        }
    }))
}

/// Enqueues rows of other keys, one after the other, until there is a dead letter; returns how many.
async fn feed_until_dead(store: &MemoryStore) -> usize {
    let mut rows = 0;
    until("it is dead", async || {
        enqueue(store, &[item(&rows.to_string()).key(&rows.to_string())]).await;
        rows += 1;
        depth(store).await.dead == 1
    })
    .await;
    drained(store).await;
    rows
}

#[tokio::test(start_paused = true)]
async fn a_cut_counts_only_against_a_row_that_was_sent_alone() {
    let store = Arc::new(in_virtual_time());
    let mut rows = numbered(8, 8);
    rows.insert(4, item("culprit").key("bad"));
    enqueue(&*store, &rows).await;
    let sink = cut_by("culprit");
    let relay = Working::start(store.clone(), sink.clone(), brisk());
    let fed = feed_until_dead(&store).await;
    relay.stop().await;
    assert_eq!(sink.delivered().len(), 8 + fed);
    assert!(sink.delivered().iter().all(|call| call.attempt == 1), "{:?}", sink.delivered());
    assert_eq!(dead(&*store).await[0].attempts, 3);
    assert!(sink.calls_for("culprit") > 3, "once in company, uncounted");
}

#[tokio::test(start_paused = true)]
async fn fault_07_row_alone_that_is_cut_waits_until_another_is_taken() {
    let store = Arc::new(in_virtual_time());
    enqueue(&*store, &[item("culprit").key("k")]).await;
    let sink = cut_by("culprit");
    let relay = Working::start(store.clone(), sink.clone(), brisk());
    until("many cuts", async || sink.calls_for("culprit") == 10).await;
    assert_eq!(depth(&*store).await.dead, 0, "nothing shows that the sink works");
    feed_until_dead(&store).await;
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn fault_07_row_rejected_beside_taken_ones_uses_up_its_attempts() {
    let store = Arc::new(in_virtual_time());
    enqueue(&*store, &[item("poison").key("bad")]).await;
    let sink = Arc::new(Script::new(|call| async move {
        let is_poison = call.payload == "poison";
        if is_poison { Err(DeliveryError::rejected("full")) } else { Ok(()) }
    }));
    let relay = Working::start(store.clone(), sink.clone(), brisk());
    let fed = feed_until_dead(&store).await;
    relay.stop().await;
    assert_eq!(dead(&*store).await[0].attempts, 3);
    assert_eq!(sink.delivered().len(), fed);
    assert!(sink.delivered().iter().all(|call| call.attempt == 1));
}

/// A sink that answers nothing, or rejects everything, gets one row at a time, in turn, with pauses;
/// the relay's health is down from the first failure to the first delivery.
async fn sink_that_takes_nothing_gets_one_row_at_a_time(hangs: bool) {
    let store = Arc::new(in_virtual_time());
    enqueue(&*store, &numbered(10, 10)).await;
    let is_away = Arc::new(AtomicBool::new(true));
    let in_flight = Arc::new(AtomicUsize::new(0));
    let sink = {
        let is_away = is_away.clone();
        Arc::new(Script::new(move |_| {
            let (is_away, in_flight) = (is_away.clone(), in_flight.clone());
            async move {
                let others = in_flight.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
                let is_away = is_away.load(Ordering::SeqCst);
                in_flight.fetch_sub(1, Ordering::SeqCst);
                match is_away {
                    true if others > 0 => Err(DeliveryError::rejected("in company")),
                    true if hangs => Err(DeliveryError::unanswered("silence")),
                    true => Err(DeliveryError::rejected("full")),
                    false => Ok(()),
                }
            }
        }))
    };
    let relay = Relay::with(store.clone(), sink.clone(), brisk().max_attempts(2));
    let mut health = relay.health();
    let running = Working::run(|stop| relay.run(stop));
    // The ten rows of the first batch fail side by side.
    until("the first batch", async || sink.begun().len() >= 10).await;
    health.wait_for(|health| *health != TargetHealth::Up).await.unwrap();
    let mut was_up = health.clone();
    let tries = async || until("many tries", async || sink.begun().len() >= 60).await;
    tokio::select! {
        () = tries() => {}
        _ = was_up.wait_for(|health| *health == TargetHealth::Up) => panic!("up without a delivery"),
    }
    let begun = sink.begun();
    let is_other = |pair: &[Call]| pair[0].id != pair[1].id;
    assert!(begun[10..].windows(2).all(is_other), "each time another row tries");
    let reason = if hangs { "silence" } else { "full" };
    assert_eq!(*health.borrow(), TargetHealth::Down(reason.into()), "no row had company");
    is_away.store(false, Ordering::SeqCst);
    drained(&*store).await;
    running.stop().await;
    assert!(sink.delivered().iter().all(|call| call.attempt == 1));
    assert_eq!((depth(&*store).await.dead, health.borrow().clone()), (0, TargetHealth::Up));
}

#[tokio::test(start_paused = true)]
async fn fault_07_sink_that_rejects_everything_gets_one_row_at_a_time() {
    sink_that_takes_nothing_gets_one_row_at_a_time(false).await;
}

#[tokio::test(start_paused = true)]
async fn fault_07_sink_that_answers_nothing_gets_one_row_at_a_time() {
    sink_that_takes_nothing_gets_one_row_at_a_time(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_row_without_an_answer_does_not_stop_those_that_have_one() {
    let store = Arc::new(in_virtual_time());
    enqueue(&*store, &[item("hangs").key("bad")]).await;
    let sink = Arc::new(Script::new(|call| async move {
        if call.payload == "hangs" {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(())
    }));
    let settings = brisk().send_timeout(Duration::from_millis(100));
    let relay = Working::start(store.clone(), sink.clone(), settings);
    let fed = feed_until_dead(&store).await;
    relay.stop().await;
    assert_eq!(dead(&*store).await[0].attempts, 3);
    assert_eq!(sink.delivered().len(), fed);
}

/// The usual design created the event's id when it published: a message whose acknowledgement was
/// lost was sent again under another id, and no inbox could recognise it.
#[tokio::test]
async fn hole_24_a_row_that_is_sent_twice_has_one_id_and_one_effect() {
    let row = item("order").key("k");
    let store = stored(std::slice::from_ref(&row)).await;
    let inbox = Inbox::new(store.clone());
    let effects = Arc::new(AtomicUsize::new(0));
    let sink = {
        let effects = effects.clone();
        Arc::new(Script::new(move |call| {
            let (inbox, effects) = (inbox.clone(), effects.clone());
            async move {
                // The receiver acts on the message, but its first acknowledgement is lost.
                let act = |_| async { Ok::<_, ()>(effects.fetch_add(1, Ordering::SeqCst)) };
                let handled = inbox.once("billing", &call.id.to_string(), act).await.unwrap();
                match handled.replayed {
                    false => Err(DeliveryError::disconnected("the acknowledgement was lost")),
                    true => Ok(()),
                }
            }
        }))
    };
    drain(&store, sink.clone(), brisk(), 0).await;
    assert_eq!(sink.begun().len(), 2);
    assert!(sink.begun().iter().all(|call| call.id == row.id));
    assert_eq!(effects.load(Ordering::SeqCst), 1);
}
