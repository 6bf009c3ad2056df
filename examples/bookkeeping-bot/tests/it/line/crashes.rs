use std::collections::BTreeMap;
use std::time::Duration;

use hapax_line::simulator::events;
use hapax_testkit::{Postgres, Redis, scale};

use crate::line::support::{USER, World};

/// Short, so that a dead bot is replaced soon. On a slow machine the lease of a living bot may
/// lapse, so that two attempts at a message overlap; that must be harmless too.
const LEASE: &str = "2";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_step_leaves_one_booking_its_record_and_one_answer() {
    let redis = Redis::start();
    let postgres = Postgres::start();
    for database in [None, Some(postgres.url())] {
        let mut world =
            World::new(Some(&redis.url()), database.as_deref()).await.flag("--lease", LEASE);
        for point in ["decided", "settling", "settled", "done", "concluded", "said"] {
            let before = world.booked().await.len();
            let answered = world.api.accepted_calls().len();
            let event = events::text(USER, &format!("{point}🥚 100"));
            world.die_at_then_redeliver(point, &event).await;
            world.drained().await;
            let booked = world.booked().await;
            assert_eq!(booked.len(), before + 1, "{point}: {booked:?}");
            assert_eq!(booked.last(), Some(&(format!("{point}🥚"), 100.0)));
            assert_eq!(world.api.accepted_calls().len(), answered + 1, "one answer: {point}");
            let edited = world.say("改金額 120").await;
            assert_eq!(edited[0], "修改成功", "{point}");
            assert!(edited[1].contains(&format!("品項：{point}🥚")), "{edited:?}");
        }
        world.in_order();
    }
}

/// The same for edits and deletions, which must not touch another entry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_step_of_an_edit_or_a_deletion_leaves_it_done_once() {
    let redis = Redis::start();
    let mut world = World::new(Some(&redis.url()), None).await.flag("--lease", LEASE);
    for point in ["decided", "settled", "done", "concluded"] {
        world.start();
        world.say(&format!("{point}🥚 100")).await;
        for (text, answer) in [("改金額 120", "修改成功"), ("刪除", "🗑️ 已刪除")] {
            let event = events::text(USER, text);
            world.die_at_then_redeliver(point, &event).await;
            let said = world.heard(&event).await.texts();
            assert!(said[0].starts_with(answer), "{point}: {said:?}");
            world.drained().await;
        }
        let rows = world.rows().await;
        let row = rows.last().expect("a row");
        assert_eq!(row.amended.as_ref().map(|entry| entry.amount), Some(120.0), "{point}");
        assert!(row.withdrawn, "{point}");
    }
    world.in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_random_moments_neither_lose_nor_double_a_message() {
    let redis = Redis::start();
    let postgres = Postgres::start();
    let (redis, postgres) = (redis.url(), postgres.url());
    for (store, database) in [(None, None), (Some(&*redis), Some(&*postgres))] {
        let mut world = World::new(store, database).await.flag("--lease", LEASE);
        let mut sent = BTreeMap::new();
        for kill in 0..5 * scale() {
            world.start();
            for n in 0..6 {
                let item = format!("蛋🥚{kill}-{n}");
                let event = events::text(USER, &format!("{item} 10"));
                let taken = world.deliver(std::slice::from_ref(&event)).await == Some(200);
                sent.insert(item, (event, taken));
                tokio::time::sleep(Duration::from_millis(u64::from(kill * 7 % 13))).await;
            }
            world.kill();
        }
        world.start();
        // LINE redelivers all events without a 200; redeliver some of the others, too.
        for (n, (event, taken)) in sent.values().enumerate() {
            if !taken || n % 3 == 0 {
                assert_eq!(world.deliver(&[events::redelivered(event)]).await, Some(200));
            }
        }
        world.drained().await;
        let mut booked: Vec<_> = world.booked().await.into_iter().map(|(item, _)| item).collect();
        booked.sort();
        assert_eq!(booked, sent.keys().cloned().collect::<Vec<_>>());
        world.in_order();
    }
}
