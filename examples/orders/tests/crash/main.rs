//! Creates an order, kills the process at every statement, and retries: one order, one answer.

mod shop;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use hapax_testkit::{Postgres, scale};
use shop::{Answer, Running, order, order_to_death, post};

const TEA: &str = r#"{"item":"tea","cups":2}"#;
const COFFEE: &str = r#"{"item":"coffee","cups":2}"#;

/// Runs a test on SQLite and on PostgreSQL.
fn on_both(test: impl Fn(&str)) {
    let folder = tempfile::tempdir().expect("a folder");
    test(&format!("sqlite:{}/orders.db", folder.path().display()));
    test(&Postgres::start().url());
}

#[test]
fn a_crash_at_any_statement_leaves_one_order_and_one_answer() {
    on_both(|store| {
        for (n, point) in ["claimed", "inserted", "settled", "committed"].into_iter().enumerate() {
            let dying = Running::dying_at(point, store);
            order_to_death(dying.url(), point, TEA);
            dying.ended();

            // Only a crash after the commit leaves an order, together with its answer.
            let committed = point == "committed";
            let shop = Running::start(store);
            assert_eq!(shop.count(), n + usize::from(committed), "after {point}");

            let (first, replayed) = order(shop.url(), point, TEA);
            assert_eq!(first.status, 201, "{first:?}");
            assert!(replayed.is_none_or(|replayed| replayed == committed), "{point}: {replayed:?}");
            assert_eq!(shop.count(), n + 1);
            let (second, replayed) = order(shop.url(), point, TEA);
            assert_eq!(second, first);
            assert_ne!(replayed, Some(false));
            assert_eq!(order(shop.url(), point, COFFEE).0.status, 422);
            assert_eq!(shop.count(), n + 1);
        }
    });
}

#[test]
fn fifty_at_once_with_one_key_make_one_order_and_get_equal_answers() {
    on_both(|store| {
        let shop = Running::start(store);
        let answers: Vec<_> = thread::scope(|scope| {
            let one = || order(shop.url(), "k1", TEA);
            let all: Vec<_> = (0..50).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|one| one.join().expect("an answer")).collect()
        });
        let made = answers.iter().filter(|(_, replayed)| *replayed == Some(false)).count();
        let unsure = answers.iter().any(|(_, replayed)| replayed.is_none());
        assert!(made == 1 || made == 0 && unsure, "{answers:?}");
        assert!(answers.iter().all(|(answer, _)| *answer == answers[0].0), "{answers:?}");
        assert_eq!((answers[0].0.status, shop.count()), (201, 1));
    });
}

/// Four clients, each with orders of its own, against a shop that is killed repeatedly.
#[test]
fn kills_at_random_moments_neither_lose_nor_double_an_order() {
    on_both(|store| {
        let place = Mutex::new(Running::start(store));
        let url = || place.lock().unwrap_or_else(PoisonError::into_inner).url().to_owned();
        let done = AtomicBool::new(false);
        let kills = 8 * scale();
        let answers: Vec<String> = thread::scope(|scope| {
            let (url, done) = (&url, &done);
            let clients: Vec<_> = (0..4)
                .map(|client| scope.spawn(move || order_until_done(client, url, done)))
                .collect();
            for n in 0..kills {
                thread::sleep(Duration::from_millis(u64::from(37 * n % 101)));
                // Start the next shop before taking the lock: clients need the lock for the URL,
                // and must keep sending until the old shop is killed.
                let next = Running::start(store);
                *place.lock().unwrap_or_else(PoisonError::into_inner) = next;
            }
            done.store(true, Ordering::Relaxed);
            clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
        });
        let shop = Running::start(store);
        // Every key has created exactly one order.
        assert_eq!(answers.iter().collect::<BTreeSet<_>>().len(), answers.len());
        assert_eq!(shop.count(), answers.len());
    });
}

/// Sends each order until it is answered, and then once more.
fn order_until_done(client: u32, url: &impl Fn() -> String, done: &AtomicBool) -> Vec<String> {
    let mut answers = Vec::new();
    for n in 0.. {
        let key = format!("{client}-{n}");
        let ask = || loop {
            match post(&url(), Some(&key), TEA) {
                Some((answer, _)) if answer.status == 201 => return answer,
                Some((Answer { status: 409 | 503, .. }, _)) | None => {
                    thread::sleep(Duration::from_millis(2));
                }
                other => panic!("{other:?}"),
            }
        };
        let first = ask();
        assert_eq!(ask(), first);
        answers.push(first.body);
        if done.load(Ordering::Relaxed) {
            break;
        }
    }
    answers
}

#[test]
fn a_request_without_a_key_or_without_an_order_is_refused() {
    on_both(|store| {
        let shop = Running::start(store);
        let (refused, _) = post(shop.url(), None, TEA).expect("an answer");
        assert_eq!(refused.status, 400);
        assert!(refused.body.contains("/key-missing"), "{}", refused.body);
        assert_eq!(order(shop.url(), "k", r#"{"item":"tea"}"#).0.status, 400);
        assert_eq!(shop.count(), 0);
        let (made, _) = order(shop.url(), "k", TEA);
        assert_eq!(made.kind.as_deref(), Some("application/json"));
        let location = made.location.expect("a location");
        let number = location.strip_prefix("/orders/").expect("a number");
        assert_eq!(made.body, format!(r#"{{"order":{number},"item":"tea","cups":2}}"#));
    });
}

#[test]
fn a_database_that_hangs_is_a_503_and_the_same_key_finds_out() {
    let database = Postgres::start();
    let shop = Running::start(&database.url());
    assert_eq!(order(shop.url(), "before", TEA).0.status, 201);
    database.stop();
    let (refused, _) = post(shop.url(), Some("k"), TEA).expect("an answer within the limit");
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains(r#""retryable":true"#), "{}", refused.body);
    database.cont();
    assert_eq!(order(shop.url(), "k", TEA).0.status, 201);
    assert_eq!(shop.count(), 2);
}
