//! Claims inside a transaction that the caller owns.

use std::time::Duration;

use crate::common::*;
use hapax_core::{
    Claimed, Claims, Expect, GiveBack, Once, OnceError, Operation, Put, Records, Step, StoreError,
};
use hapax_sqlite::rusqlite::{self, Connection, TransactionBehavior};
use hapax_sqlite::{HapaxTransaction, SqliteTransaction};

fn orders(shop: &Connection) -> i64 {
    shop.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).unwrap()
}

fn order(shop: &Connection) -> rusqlite::Result<String> {
    shop.execute("INSERT INTO orders VALUES ('bento')", [])?;
    Ok("ordered".into())
}

/// The command `a`, which `command("a")` is the key of.
fn once<E>(
    hapax: SqliteTransaction<'_>,
    effect: impl FnOnce(&Connection) -> Result<String, E>,
) -> Result<Once<String>, OnceError<E>> {
    hapax.once(Operation("pay"), "a", "bento", effect)
}

fn ordered(replayed: bool) -> Once<String> {
    Once { value: "ordered".into(), replayed }
}

#[test]
fn transaction_duplicate_never_waits() {
    let place = Place::new();
    let (mut one, mut two) = (shop(&place), shop(&place));
    two.busy_timeout(Duration::from_secs(3600)).unwrap();
    let first = one.transaction().unwrap();
    ticket(first.hapax().claim(&command("a"), &ask()));

    let second = two.transaction().unwrap();
    let told = second.hapax().claim(&command("a"), &ask()).unwrap();
    assert!(matches!(told, Claimed::Busy { .. }));
    drop(second);
    let kept: i64 = two.pragma_query_value(None, "busy_timeout", |row| row.get(0)).unwrap();
    assert_eq!(kept, 3_600_000);

    first.rollback().unwrap();
    let second = two.transaction().unwrap();
    ticket(second.hapax().claim(&command("a"), &ask()));
}

#[test]
fn transaction_claim_ignores_an_old_snapshot() {
    let place = Place::new();
    let (mut one, mut two) = (shop(&place), shop(&place));
    let old = one.transaction().unwrap();
    assert_eq!(orders(&old), 0);
    let new = two.transaction().unwrap();
    let done = once(new.hapax(), order).unwrap();
    assert_eq!(done, ordered(false));
    new.commit().unwrap();

    let told = once(old.hapax(), order);
    assert!(matches!(told, Err(OnceError::InProgress { .. })), "{told:?}");
    drop(old);
    let fresh = one.transaction().unwrap();
    assert_eq!(once(fresh.hapax(), order).unwrap(), ordered(true));
    assert_eq!(orders(&fresh), 1);
}

#[tokio::test]
async fn once_replays_over_the_store_and_refuses_another_input() {
    let place = Place::new();
    let mut shop = shop(&place);
    let tx = shop.transaction().unwrap();
    assert_eq!(once(tx.hapax(), order).unwrap(), ordered(false));
    let reused = tx.hapax().once(Operation("pay"), "a", "tea", order);
    assert!(matches!(reused, Err(OnceError::KeyReused)), "{reused:?}");
    tx.commit().unwrap();

    let commands = hapax_core::command::Commands::new(std::sync::Arc::new(place.store()));
    let never = || async { Err::<String, _>("ran twice") };
    assert_eq!(commands.once(Operation("pay"), "a", "bento", never).await.unwrap(), ordered(true));
}

#[test]
fn once_failed_effect_leaves_no_trace() {
    let place = Place::new();
    let mut shop = shop(&place);
    let tx = shop.transaction().unwrap();
    order(&tx).unwrap();
    let failed = once(tx.hapax(), |shop| {
        order(shop).unwrap();
        Err::<String, _>("no bento left")
    });
    assert!(matches!(failed, Err(OnceError::Failed("no bento left"))));
    assert!(tx.hapax().look(&command("a")).unwrap().is_none());
    assert_eq!(orders(&tx), 1);
    assert_eq!(once(tx.hapax(), order).unwrap(), ordered(false));
    tx.commit().unwrap();
    assert_eq!(orders(&shop), 2);
}

#[test]
fn once_rolled_back_runs_again() {
    let place = Place::new();
    let mut shop = shop(&place);
    for _ in 0..2 {
        let tx = shop.transaction().unwrap();
        assert_eq!(once(tx.hapax(), order).unwrap(), ordered(false));
        tx.rollback().unwrap();
    }
    assert_eq!(orders(&shop), 0);
}

#[test]
fn transaction_methods_need_an_open_transaction() {
    let place = Place::new();
    let shop = shop(&place);
    let answer = shop.hapax().claim(&command("a"), &ask());
    assert!(matches!(answer, Err(StoreError::Internal { .. })), "{answer:?}");
    let answer = once(shop.hapax(), order);
    let Err(OnceError::Store(error)) = answer else { panic!("{answer:?}") };
    assert!(matches!(error, StoreError::Internal { .. }), "{error:?}");
    assert_eq!(orders(&shop), 0);
}

#[test]
fn transaction_supports_every_step() {
    let place = Place::new();
    let mut shop = shop(&place);
    let tx = shop.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let (a, b, r) = (command("a"), command("b"), record("r"));
    let held = ticket(tx.hapax().claim(&a, &ask()));
    let done = Step::Done(held.fence);
    assert_eq!(tx.hapax().extend(&a, &held.token, HOUR).unwrap(), done);
    assert_eq!(tx.hapax().settle(&a, &held.token, "x".into()).unwrap(), done);
    let held = ticket(tx.hapax().claim(&b, &ask()));
    let back = tx.hapax().give_back(&b, &held.token, GiveBack::Forget).unwrap();
    assert_eq!(back, Step::Done(held.fence));
    let put = tx.hapax().put(&r, "1".into(), &Expect::Absent, None).unwrap();
    assert!(matches!(put, Put::Stored { created: true, .. }));
    assert_eq!(tx.hapax().get(&r).unwrap().unwrap().value, "1");
    let _ = tx.hapax().delete(&r, &Expect::Any).unwrap();
    assert!(tx.hapax().get(&r).unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_sees_the_commit_of_a_transaction() {
    let (place, store) = Place::with_store();
    let (key, mut shop) = (command("a"), shop(&place));
    let held = ticket(store.claim(&key, &ask()).await);
    let mut watch = store.watch(&key);

    let tx = shop.transaction().unwrap();
    let _ = tx.hapax().settle(&key, &held.token, "inside".into()).unwrap();
    let _ = tx.hapax().put(&record("r"), "1".into(), &Expect::Any, None).unwrap();
    tx.commit().unwrap();

    let heard = tokio::time::timeout(PATIENT, async {
        while !matches!(store.claim(&key, &ask()).await, Ok(Claimed::Settled { .. })) {
            watch.changed(Duration::MAX).await;
        }
    });
    heard.await.expect("a hint");
    assert_eq!(store.get(&record("r")).await.unwrap().unwrap().value, "1");
}
